"""Attention arguments: each rule applies where it is proved, refuses where it is not, and changes
no value."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from torchweld.capture import attention, constant, written_out
from torchweld.capture.written_out import masked_attention, write_out

N, D = 6, 8


def qkv(heads=4, kv_heads=4, n=N, m=N):
    torch.manual_seed(0)
    return (
        torch.randn(2, heads, n, D),
        torch.randn(2, kv_heads, m, D),
        torch.randn(2, kv_heads, m, D),
    )


def dynamo_graph(fn, *args):
    """Dynamo's graph of fn(*args), and its inputs: in the order of their first use."""
    found = []

    def backend(gm, example_inputs):
        def run(*inputs):
            found.append((gm, inputs))
            return gm(*inputs)

        return run

    torch._dynamo.reset()
    torch.compile(fn, backend=backend, fullgraph=True, dynamic=False)(*args)
    return found[0]


def exported_graph(fn, *args):
    class Model(torch.nn.Module):
        def forward(self, *args):
            return fn(*args)

    return torch.export.export(Model(), args, strict=False).graph_module, args


def call_of(gm):
    node = next(n for n in gm.graph.nodes if "scaled_dot_product_attention" in str(n.target))
    return attention.arguments(node)


def simplified(capture, fn, *args):
    """(how many calls changed, the call's arguments) with the graph's value checked against the
    function's."""
    gm, inputs = capture(fn, *args)
    changed = attention.simplify(gm)
    gm.graph.lint()
    result = gm(*inputs)
    torch.testing.assert_close(result[0], fn(*args))
    return changed, call_of(gm)


both = pytest.mark.parametrize("capture", [dynamo_graph, exported_graph])


@both
@pytest.mark.parametrize("make", [
    lambda q: torch.ones(N, N, dtype=torch.bool),
    lambda q: torch.zeros(N, N),
    lambda q: torch.zeros(1, 1, N, N),
    lambda q: (torch.arange(N)[:, None] >= 0).expand(N, N),
    lambda q: (torch.arange(N)[None, None, :, None] >= 0).expand(2, -1, N, N),
])  # fmt: skip
def test_trivial_mask_is_dropped(capture, make):
    changed, args = simplified(
        capture, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, make(q)), *qkv()
    )
    assert changed == 1 and args["attn_mask"] is None and not args.get("is_causal")


@both
@pytest.mark.parametrize("make", [
    lambda: torch.ones(N, N, dtype=torch.bool).tril(),
    lambda: torch.full((N, N), -torch.inf).triu(1),
    lambda: torch.arange(N)[:, None] >= torch.arange(N),
    lambda: (torch.arange(N)[None, :] <= torch.arange(N)[:, None])[None, None].expand(2, -1, N, N),
])  # fmt: skip
def test_causal_mask_becomes_a_flag(capture, make):
    changed, args = simplified(
        capture, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, make()), *qkv()
    )
    assert changed == 1 and args["attn_mask"] is None and args["is_causal"] is True


def test_operators_that_are_called_as_methods():
    """Some versions of torch capture `a == b` of tensors as a.__eq__(b)."""

    def fn(q, k, v):
        i = torch.arange(N)
        packed = (torch.diff(i, prepend=i[:1] - 1) != 1).cumsum(-1)
        mask = (i[None, :] <= i[:, None]) & (packed[None, :] == packed[:, None])
        return F.scaled_dot_product_attention(q, k, v, mask)

    gm, _ = dynamo_graph(fn, *qkv())
    names = {"eq": "__eq__", "ne": "__ne__", "le": "__le__", "and_": "__and__", "sub": "__sub__"}
    for node in gm.graph.nodes:
        if node.op == "call_function" and constant.name_of(node) in names:
            node.op, node.target = "call_method", names[constant.name_of(node)]
    gm.recompile()
    assert attention.simplify(gm) == 1
    assert call_of(gm)["is_causal"] is True


def test_operators_of_aten_by_their_old_names():
    """aten.__and__ is another operation than aten.bitwise_and."""

    def fn(q, k, v):
        i = torch.arange(N)
        mask = torch.ops.aten.__and__.Tensor(i[None, :] <= i[:, None], i[None, :] >= 0)
        return F.scaled_dot_product_attention(q, k, v, mask)

    gm, _ = exported_graph(fn, *qkv())
    assert attention.simplify(gm) == 1
    assert call_of(gm)["is_causal"] is True


@both
@pytest.mark.parametrize("make", [
    lambda: torch.ones(N, N, dtype=torch.bool).tril(1),
    lambda: torch.ones(N, N, dtype=torch.bool).triu(),
    lambda: torch.full((N, N), -1e9).triu(1),  # large is not infinite
    lambda: torch.full((N, N), -torch.inf).triu(1) + 1,
])  # fmt: skip
def test_other_masks_stay(capture, make):
    changed, args = simplified(
        capture, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, make()), *qkv()
    )
    assert changed == 0 and args["attn_mask"] is not None


@both
def test_a_rectangular_triangle_stays(capture):
    q, k, v = qkv(n=4, m=N)
    mask = lambda: torch.ones(4, N, dtype=torch.bool).tril()  # noqa: E731
    changed, _ = simplified(
        capture, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask()), q, k, v
    )
    assert changed == 0


@both
def test_a_mask_given_by_the_user_stays(capture):
    def fn(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, mask & torch.ones(N, N, dtype=torch.bool))

    changed, args = simplified(capture, fn, *qkv(), torch.ones(N, N, dtype=torch.bool))
    assert changed == 0 and args["attn_mask"] is not None


def test_a_mask_written_to_stays():
    def fn(q, k, v, row):
        mask = torch.zeros(N, N)
        view = mask[0]
        view.copy_(row)
        return F.scaled_dot_product_attention(q, k, v, mask)

    changed, args = simplified(dynamo_graph, fn, *qkv(), torch.randn(N))
    assert changed == 0 and args["attn_mask"] is not None


@both
@pytest.mark.parametrize("repeat", [
    lambda x: x.repeat_interleave(2, dim=1),
    lambda x: x[:, :, None, :, :].expand(2, 2, 2, N, D).reshape(2, 4, N, D),
    lambda x: x.unsqueeze(2).expand(-1, -1, 2, -1, -1).reshape(2, 4, N, D),
])  # fmt: skip
def test_repeated_heads_are_shared(capture, repeat):
    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, repeat(k), repeat(v), is_causal=True)

    changed, args = simplified(capture, fn, *qkv(kv_heads=2))
    assert changed == 1 and args["enable_gqa"] is True
    assert attention.example(args["key"]).shape[1] == 2


@both
@pytest.mark.parametrize("repeat", [
    lambda x: x.repeat(1, 2, 1, 1),  # heads in another order
    lambda x: x[:, None].expand(2, 2, 2, N, D).reshape(2, 4, N, D),
    lambda x: x.repeat_interleave(2, dim=2)[:, :, :N].repeat_interleave(2, dim=1) * 1,
])  # fmt: skip
def test_other_repetitions_stay(capture, repeat):
    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, repeat(k), repeat(v))

    assert simplified(capture, fn, *qkv(kv_heads=2))[0] == 0


@both
def test_heads_are_not_shared_under_a_mask(capture):
    def fn(q, k, v, mask):
        k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
        return F.scaled_dot_product_attention(q, k, v, mask)

    assert simplified(capture, fn, *qkv(kv_heads=2), torch.randn(N, N))[0] == 0


def cuda_call(mask=None, dtype=torch.bfloat16, repeat=False, turned=False):
    """An attention call on CUDA tensors that are not there, with a mask of the user's."""
    graph = torch.fx.Graph()
    with FakeTensorMode():
        kv = (2, 2 if repeat else 4, N, D)
        values = {"q": torch.empty(2, 4, N, D, dtype=dtype, device="cuda")}
        values |= {name: torch.empty(kv, dtype=dtype, device="cuda") for name in "kv"}
        if turned:
            values["v"] = torch.empty(2, 4, D, N, dtype=dtype, device="cuda").mT
        if mask is not None:
            values["mask"] = mask()
        nodes = {}
        for name, value in values.items():
            nodes[name] = graph.placeholder(name)
            nodes[name].meta["example_value"] = value
        for name in "kv" if repeat else "":
            source, value = nodes[name], values[name].repeat_interleave(2, 1)
            nodes[name] = graph.call_function(torch.repeat_interleave, (source, 2, 1))
            nodes[name].meta["example_value"] = value
    args = tuple(nodes[n] for n in "qkv")
    kwargs = {"attn_mask": nodes["mask"]} if mask is not None else {}
    graph.output(graph.call_function(F.scaled_dot_product_attention, args, kwargs))
    return torch.fx.GraphModule({}, graph)


def test_a_cuda_mask_gets_a_unit_stride():
    gm = cuda_call(
        lambda: torch.empty(2, 1, N, 1, dtype=torch.bool, device="cuda").expand(2, 1, N, N)
    )
    assert attention.simplify(gm) == 1
    mask = call_of(gm)["attn_mask"]
    assert mask.target == "contiguous" and attention.example(mask).stride() == (N * N, N * N, N, 1)
    assert attention.simplify(cuda_call(lambda: torch.empty(N, N, device="cuda"))) == 0


def test_cuda_values_get_a_unit_stride():
    gm = cuda_call(turned=True)
    assert attention.simplify(gm) == 1
    args = call_of(gm)
    assert args["value"].target == "contiguous" and args["query"].op == args["key"].op
    assert attention.example(args["value"]).stride() == (4 * N * D, N * D, D, 1)


@pytest.mark.parametrize(
    "dtype, shared", [(torch.bfloat16, 1), (torch.float16, 1), (torch.float32, 0)]
)
def test_cuda_heads_are_shared_where_the_flash_kernel_runs(dtype, shared):
    assert attention.simplify(cuda_call(dtype=dtype, repeat=True)) == shared


@pytest.mark.parametrize(
    "dtype, written", [(torch.bfloat16, 0), (torch.float16, 0), (torch.float32, 1)]
)
def test_float32_on_a_gpu_is_written_out(dtype, written):
    """Where templates take it: the library's kernel of float32 is slower than ours."""
    assert write_out(cuda_call(dtype=dtype), lambda scores: True) == written
    assert write_out(cuda_call(dtype=dtype), lambda scores: False) == 0
    masked = cuda_call(lambda: torch.empty(N, N, device="cuda"), dtype=dtype)
    assert write_out(masked, lambda scores: True) == 0  # the mask is the user's


@pytest.mark.parametrize(
    "trains, deepest, written", [(True, D, 1), (True, D - 1, 0), (False, 0, 1)]
)
def test_deep_heads_of_float32_stay_calls_in_training(monkeypatch, trains, deepest, written):
    monkeypatch.setattr(written_out, "_DEEPEST_GRADIENT", deepest)
    call = cuda_call(dtype=torch.float32)
    for node in call.graph.find_nodes(op="placeholder"):
        node.meta["example_value"].requires_grad_(trains)
    assert write_out(call, lambda scores: True) == written


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows, keys, shared", [(7, 7, 1), (5, 9, 2), (9, 5, 1)])
def test_steps_of_attention_without_a_mask(causal, rows, keys, shared):
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(2, 4, rows, 8, generator=generator, dtype=torch.float64)
    k, v = (
        torch.randn(2, 4 // shared, keys, 8, generator=generator, dtype=torch.float64)
        for _ in "kv"
    )
    given = {"is_causal": causal, "scale": 0.3, "enable_gqa": shared > 1}
    expected = F.scaled_dot_product_attention(q, k, v, **given)
    torch.testing.assert_close(masked_attention(q, k, v, **given), expected)


def dynamic_graph(fn, n, *more):
    """Dynamo's graph with a symbolic length."""
    found = []

    def backend(gm, example_inputs):
        found.append(gm)
        return gm.forward

    torch._dynamo.reset()
    inputs = qkv(n=n, m=n)
    torch.compile(fn, backend=backend, fullgraph=True, dynamic=True)(*inputs, *more)
    return found[0]


def rows(n):
    return torch.arange(n)[None, None, :, None]


def columns(n):
    return torch.arange(n)[None, None, None, :]


def packed(n):
    """Which document of a packed row a position is in: one that starts anew where positions
    jump."""
    positions = torch.arange(n).unsqueeze(0).expand(2, -1)
    jumps = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1
    documents = jumps.cumsum(-1)
    batch = torch.arange(2)[:, None, None, None]
    return documents[batch, rows(n)] == documents[batch, columns(n)]


@pytest.mark.parametrize("make", [
    lambda n: (rows(n) >= 0).expand(2, -1, n, n),
    lambda n: (rows(n) + columns(n) > -1).to(torch.bool),
    lambda n: packed(n),
    lambda n: torch.ones(n, n, dtype=torch.bool),
])  # fmt: skip
def test_trivial_mask_of_any_length(make):
    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, make(q.shape[2]))

    gm = dynamic_graph(fn, 13)
    assert attention.simplify(gm) == 1 and call_of(gm)["attn_mask"] is None


@pytest.mark.parametrize("make", [
    lambda n: columns(n) <= rows(n),
    lambda n: columns(n) < rows(n) + 1,
    lambda n: (torch.arange(n)[:, None] - torch.arange(n) >= 0)[None, None].expand(2, -1, n, n),
    lambda n: (columns(n) <= rows(n)) & packed(n) & (rows(n) >= 0),
])  # fmt: skip
def test_causal_mask_of_any_length(make):
    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, make(q.shape[2]))

    gm = dynamic_graph(fn, 13)
    assert attention.simplify(gm) == 1 and call_of(gm)["is_causal"] is True


@pytest.mark.parametrize("make", [
    lambda n: columns(n) < rows(n),
    lambda n: columns(n) <= rows(n) + 1,
    lambda n: (columns(n) <= rows(n)) & (rows(n) - columns(n) < 4),  # a window
    lambda n: rows(n) <= columns(n),
    lambda n: torch.arange(0, 2 * n, 2)[None, :] <= torch.arange(n)[:, None],
    lambda n: torch.arange(n + 1)[1:][None, :] <= torch.arange(n)[:, None],
    lambda n: (torch.diff(torch.arange(n), prepend=torch.tensor([5])) == 1)[None, :],
    lambda n: (columns(n) == rows(n)) | (columns(n) < rows(n)),
])  # fmt: skip
def test_other_masks_of_any_length_stay(make):
    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, make(q.shape[2]))

    assert attention.simplify(dynamic_graph(fn, 13)) == 0


def test_constants():
    def fn(x):
        positions = torch.arange(5) + 2
        mask = (positions[:, None] > torch.tensor(3)) & torch.ones(5, 5, dtype=torch.bool)
        return torch.where(mask, x, 0.0), positions + x[0].long(), torch.rand(3)

    gm, _ = dynamo_graph(fn, torch.randn(5, 5))
    constants = constant.Constants(gm)
    by_name = {n.name: constants.value(n) for n in gm.graph.nodes}
    assert torch.equal(by_name["positions"], torch.arange(5) + 2)
    assert by_name["mask"].sum() == 15
    assert all(
        by_name[n] is None for n in by_name if n.startswith(("l_x", "where", "rand", "output"))
    )
