"""torchweld.ops: each operator against eager and float64, and under all that torch does with
operators."""

from __future__ import annotations

from itertools import combinations
from math import prod

import pytest
import torch
import torch.nn.functional as F

import torchweld
from operator_cases import CASES, arguments, exact, step
from torchweld import ops
from torchweld.core import events
from torchweld.core.errors import UsageError
from torchweld.core.events import TorchweldWarning
from torchweld.exact.budget import compare
from torchweld.ir import row_price
from torchweld.operators import programs
from torchweld.operators.table import TABLE

NAMES = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


@pytest.fixture(autouse=True)
def one_thread(recwarn):
    torch.compiler.reset()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    if not any(m.category is TorchweldWarning for m in recwarn.list):
        return
    told = [str(m.message) for m in recwarn if m.category is TorchweldWarning]
    assert all("expected by a test" in t for t in told), told


def check(case, inputs, ours=None) -> None:
    found, eager = step(ours or case.ours, inputs), step(case.eager, inputs)
    for n, three in enumerate(zip(found, eager, step(case.eager, exact(inputs)), strict=True)):
        error = compare(f"{case.name} {n}", *three)
        assert error.ok, error


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_results_and_gradients(case, dtype):
    check(case, case.inputs(dtype))


@pytest.mark.parametrize("name", ["gated_mlp", "cross_entropy", "linear_cross_entropy"])
@torch.no_grad()
def test_without_gradients(name):
    """These are other operators then."""
    case = NAMES[name]
    inputs = case.inputs()
    found = case.ours(*inputs)
    error = compare(name, found, case.eager(*inputs), case.eager(*exact(inputs)))
    assert error.ok and found.is_contiguous(), error


@pytest.mark.parametrize("row", [r for r in TABLE if r.name != "dropout_add"],
                         ids=lambda r: r.name)
def test_opcheck(row):
    args = arguments(row)
    assert set(torch.library.opcheck(ops._OPS[row.name], args).values()) == {"SUCCESS"}
    if row.ahead:
        wanted = [t.requires_grad for t in args if isinstance(t, torch.Tensor)]
        checked = torch.library.opcheck(ops._AHEAD[row.name], (*args, wanted))
        assert set(checked.values()) == {"SUCCESS"}


def test_opcheck_of_dropout():
    x, seed = torch.randn(3, 7, requires_grad=True), torch.tensor([5])
    checked = torch.library.opcheck(ops._OPS["dropout_add"], (x, torch.randn(3, 7), seed, 0.5))
    assert set(checked.values()) == {"SUCCESS"}


@each
def test_under_torch_compile(case):
    """Whole, and opaque: nothing of ours is traced through."""
    inputs = case.inputs()
    expected = step(case.ours, inputs)
    for backend in ("eager", "aot_eager"):
        torch.compiler.reset()
        found = step(torch.compile(case.ours, backend=backend, fullgraph=True), inputs)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    exported(case)


def exported(case):
    class Model(torch.nn.Module):
        def forward(self, *args):
            return case.ours(*args)

    inputs = tuple(t.detach() for t in case.inputs())
    program = torch.export.export(Model(), inputs)
    named = {str(n.target) for n in program.graph.nodes if n.op == "call_function"}
    assert any(n.startswith("torchweld.") for n in named), named
    found, expected = program.module()(*inputs), case.ours(*inputs)
    torch.testing.assert_close(found, expected)


def records_since(before: list) -> list:
    """Of what was compiled since. The process keeps its last records alone."""
    known = set(map(id, before))
    return [r for r in torchweld.records() if id(r) not in known]


def test_sizes_are_symbols_from_the_second_on():
    case, before = NAMES["rms_norm"], torchweld.records()

    def own(x, weight):
        """Programs are kept by constants: those of other tests have another."""
        return ops.rms_norm(x, weight, 1.0000001e-6)

    for rows in (6, 9, 4, 1, 0, 17):
        x, weight = torch.randn(rows, 41), torch.randn(41, requires_grad=True)
        check(case, [x.requires_grad_(), weight], own)
    new = records_since(before)
    assert [r.kind for r in new] == ["inference", "backward"] * 4  # 6; symbols; 1; 0
    assert [len(r.graph.symbols) for r in new] == [0, 0, 1, 1, 0, 0, 0, 0]


def test_layouts():
    """Transposed, with gaps, expanded, of known sizes and of symbols."""
    case = NAMES["swiglu"]
    for n in (6, 7, 8):
        wide = torch.randn(n, 2 * 23)
        for gate, up in (
            (torch.randn(23, n).t(), torch.randn(23, n).t()),
            (wide[:, :23], wide[:, 23:]),
            (wide[:, ::2], torch.randn(1, 23).expand(n, 23)),
            (wide.view(n, 2, 23)[..., ::2], torch.randn(n, 2, 12)),
        ):
            check(case, [gate.requires_grad_(), up.detach().requires_grad_()])


def test_a_tensor_that_lies_in_memory_with_the_other_sign():
    z, weight = torch.randn(3, 4, dtype=torch.complex64), torch.rand(4)
    for x in (z.imag, z.conj().imag):
        torch.testing.assert_close(ops.rms_norm(x, weight), F.rms_norm(x, (4,), weight))


def test_too_many_sizes_run_in_eager(monkeypatch):
    monkeypatch.setattr(programs, "MAX_EXACT", 0)
    monkeypatch.setattr(programs._Kind, "may_be_symbols", lambda *given: False)
    events.clear()
    x = torch.randn(3, 5, 2, 3, requires_grad=True)
    with pytest.warns(TorchweldWarning, match="runs in eager for more than 0 sets of sizes"):
        found = step(lambda x: ops.softmax(x, scale=0.25), [x])
    for a, b in zip(found, step(lambda x: (x * 0.25).softmax(-1), [x])):
        torch.testing.assert_close(a, b)


def test_what_cannot_be_traced_runs_in_eager():
    def reads(x):
        return x * 2 if x.sum().item() > 0 else x * 3

    events.clear()
    odd = ops.define("torchweld_test::reads", reads, "(Tensor x) -> Tensor")
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with pytest.warns(TorchweldWarning, match="reads was not traced and runs in eager"):
        y = odd(x)
        y.sum().backward()
    assert y.tolist() == [2.0, 4.0] and x.grad.tolist() == [2.0, 2.0]


def test_inference_mode_first_then_training():
    with torch.inference_mode():
        x, weight = torch.randn(4, 11), torch.randn(11)
        torch.testing.assert_close(ops.rms_norm(x, weight), F.rms_norm(x, (11,), weight, 1e-6))
    case = NAMES["rms_norm"]
    check(case, [torch.randn(4, 11, requires_grad=True), torch.randn(11, requires_grad=True)])


def test_frozen_tensors_get_no_gradient():
    x, weight = torch.randn(4, 9, requires_grad=True), torch.randn(9)
    before = torchweld.records()
    ops.rms_norm(x, weight, 1e-3).sum().backward()
    _, backward = records_since(before)
    assert len(backward.graph.outputs) == 1 and weight.grad is None and x.grad is not None


def test_gradients_of_what_a_function_does_not_use():
    schema = "(Tensor x, Tensor y) -> Tensor"
    first = ops.define("torchweld_test::first", lambda x, y: x * 2, schema)
    x, y = torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)
    first(x, y).sum().backward()
    assert x.grad.tolist() == [2.0] * 3 and y.grad.tolist() == [0.0] * 2


def test_one_of_two_results_has_a_gradient():
    x, r, w = (torch.randn(*s, requires_grad=True) for s in ((4, 9), (4, 9), (9,)))
    ops.add_rms_norm(x, r, w)[0].sum().backward()
    expected = torch.autograd.grad(F.rms_norm(x + r, (9,), w, 1e-6).sum(), [x, r, w])
    for found, right in zip((x.grad, r.grad, w.grad), expected):
        torch.testing.assert_close(found, right)


def test_dropout_has_one_mask_in_both_directions():
    x = torch.ones(64, 65, requires_grad=True)
    torch.manual_seed(3)
    y = ops.dropout_add(x, torch.zeros(64, 65), 0.25)
    y.sum().backward()
    assert torch.equal(y, x.grad) and y.unique().tolist() == [0, torch.tensor(1 / 0.75).item()]
    assert 0.2 < (y == 0).float().mean() < 0.3
    torch.manual_seed(3)
    assert torch.equal(ops.dropout_add(x, torch.zeros(64, 65), 0.25), y)
    assert not torch.equal(ops.dropout_add(x, torch.zeros(64, 65), 0.25), y)


@pytest.mark.parametrize("backend", ["aot_eager", "torchweld"])
def test_dropout_compiled(backend):
    def model(x):
        zero = torch.zeros_like(x)
        return ops.dropout_add(x, zero, 0.5), ops.dropout_add(x, zero, 0.5)

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    masks = []
    for _ in range(2):
        x = torch.ones(8, 33, requires_grad=True)
        one, two = compiled(x)
        (one.sum() + two.sum()).backward()
        assert torch.equal(one + two, x.grad)
        masks += [one.detach(), two.detach()]
    assert all(not torch.equal(a, b) for a, b in combinations(masks, 2))


def test_dropout_is_compiled_once():
    """No guard on the number of seeds that were drawn before."""
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm

    compiled = torch.compile(lambda x: ops.dropout_add(x, x), backend=backend, fullgraph=True)
    for _ in range(3):
        compiled(torch.ones(3))
    assert len(graphs) == 1


def test_dropout_at_its_ends():
    x, r = torch.randn(3, 4), torch.randn(3, 4)
    assert torch.equal(ops.dropout_add(x, r, 1.0), r)
    assert torch.equal(ops.dropout_add(x, r, 0.5, training=False), x + r)
    with pytest.raises(UsageError, match="from 0 to 1"):
        ops.dropout_add(x, r, 1.5)


def test_autocast():
    """Products take its type; norms and losses are as exact as without."""
    x, gate, up = torch.randn(4, 16), torch.randn(24, 16), torch.randn(24, 16)
    down, labels = torch.randn(16, 24), torch.tensor([1, 2, 3, 4])
    for train in (False, True):
        x.requires_grad_(train)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert ops.gated_mlp(x, gate, up, down).dtype == torch.bfloat16
            assert ops.attention(*[x.view(1, 1, 4, 16)] * 3).dtype == torch.bfloat16
            loss = ops.linear_cross_entropy(x, gate, labels)
            norm = ops.rms_norm(x)
        assert loss.dtype == norm.dtype == torch.float32
        torch.testing.assert_close(norm, F.rms_norm(x, (16,), eps=1e-6))
    loss.backward()
    assert x.grad.dtype == torch.float32 and x.grad.abs().sum() > 0


def test_large_logits_are_never_whole(monkeypatch):
    monkeypatch.setattr(row_price, "_SHARE", 0.0)
    rows, depth, classes = 1024, 24, 3001
    x = torch.randn(rows, depth, requires_grad=True)
    weight = torch.randn(classes, depth, requires_grad=True)
    labels, before = torch.randint(0, classes, (rows,)), torchweld.records()
    found = step(lambda x, w: ops.linear_cross_entropy(x, w, labels), [x, weight])
    eager = step(lambda x, w: F.cross_entropy(F.linear(x, w), labels), [x, weight])
    right = step(lambda x, w: F.cross_entropy(F.linear(x, w), labels), exact([x, weight]))
    for three in zip(found, eager, right):
        assert compare("", *three).ok
    (record,) = records_since(before)
    assert max(prod(b.shape) for b in record.graph.buffers.values()) < rows * classes


@pytest.mark.usefixtures("scores_in_kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_scores_of_attention_are_never_whole(dtype):
    q, k, v = (torch.randn(1, 2, 70, 16, dtype=dtype, requires_grad=True) for _ in range(3))
    before = torchweld.records()
    for keys in (64, 66):  # other sizes have no symbols
        step(lambda *a: ops.attention(*a, score="causal"), [q, k[:, :, :keys], v[:, :, :keys]])
    new = records_since(before)
    assert [r.kind for r in new] == ["inference", "backward"] * 2
    for record in new:
        large = max(prod(b.shape) for b in record.graph.buffers.values())
        assert large < 2 * 70 * 64, [n.name for n in record.graph.nodes]


def test_half_precision_losses_are_scaled_before_they_are_rounded():
    x = torch.randn(4, 8, dtype=torch.float16, requires_grad=True)
    labels = torch.tensor([1, 2, 3, 4])
    (ops.cross_entropy(x, labels) * 2.0**-20 * 2.0**20).backward()
    expected = torch.autograd.grad(F.cross_entropy(x.float(), labels), x)[0]
    torch.testing.assert_close(x.grad, expected)


def test_all_rows_ignored():
    x = torch.randn(4, 8, requires_grad=True)
    loss = ops.cross_entropy(x, torch.full((4,), -100))
    assert loss.isnan()


def test_nan_and_infinity():
    x = torch.randn(5, 37)
    x[1, 3], x[2, 4] = float("nan"), float("inf")
    for case in ("rms_norm", "layer_norm"):
        inputs = [x, *NAMES[case].inputs()[1:]]
        found, eager = NAMES[case].ours(*inputs), NAMES[case].eager(*inputs)
        torch.testing.assert_close(found, eager, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_a_row_that_sees_nothing():
    q = torch.randn(1, 1, 3, 8)
    hidden = torch.zeros(1, 1, 3, 3)
    hidden[..., 1, :] = -torch.inf
    assert torch.equal(ops.attention(q, q, q, hidden)[0, 0, 1], torch.zeros(8))
    assert ops.softmax(hidden)[0, 0, 1].isnan().all()


def test_inside_fuse_it_is_fused_with_its_neighbours():
    def block(x, w):
        return F.gelu(ops.rms_norm(x * 2, w)) + x

    x, w = torch.randn(6, 33, requires_grad=True), torch.randn(33, requires_grad=True)
    fused = torchweld.fuse(block)
    for found, right in zip(step(fused, [x, w]), step(block, [x, w])):
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
    assert [len(r.graph.nodes) for r in torchweld.records(fused)] == [1, 1]


def test_autocast_does_not_change_what_an_operator_means():
    def model(x, gate, down):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return ops._OPS["gated_mlp"](x, gate, gate, down, None, None, None, "relu") + 1

    x, gate, down = torch.randn(5, 8), torch.randn(12, 8), torch.randn(8, 12)
    right = F.linear(F.relu(x @ gate.t()) * (x @ gate.t()), down) + 1
    for call in (model, torchweld.fuse(model)):
        torch.testing.assert_close(call(x, gate, down), right)


def test_a_loss_inside_fuse():
    def model(x, w, labels):
        return ops.linear_cross_entropy(torch.tanh(x), w, labels) * 2

    x, w = torch.randn(6, 9, requires_grad=True), torch.randn(13, 9, requires_grad=True)
    labels = torch.tensor([0, 12, 3, -100, 4, 5])
    fused = torchweld.fuse(model)
    for a, b in zip(step(fused, [x, w, labels]), step(model, [x, w, labels])):
        torch.testing.assert_close(a, b)
    assert [r.kind for r in torchweld.records(fused)] == ["forward", "backward"]


def test_inside_an_exported_module_too():
    class Block(torch.nn.Module):
        def forward(self, x):
            return ops.softmax(x + 1) * 2

    x = torch.randn(3, 19)
    fused = torchweld.fuse(Block(), x)
    torch.testing.assert_close(fused(x), Block()(x))
    assert [len(r.graph.nodes) for r in torchweld.records(fused)] == [1]


def test_an_operator_of_ones_own():
    def reference(x, y, a):
        return torch.tanh(x) * y + a, x - y

    mine = ops.define("torchweld_test::mine", reference,
                      "(Tensor x, Tensor y, float a) -> (Tensor, Tensor)")  # fmt: skip
    inputs = [torch.randn(3, 7, requires_grad=True), torch.randn(7, requires_grad=True)]
    for a, b in zip(step(lambda x, y: mine(x, y, 2.0), inputs),
                    step(lambda x, y: reference(x, y, 2.0), inputs)):  # fmt: skip
        torch.testing.assert_close(a, b)
    with pytest.raises(UsageError, match="no namespace"):
        ops.define("mine", reference, "(Tensor x) -> Tensor")


def test_what_has_no_meaning():
    x = torch.randn(2, 2)
    for call, said in (
        (lambda: ops.gated(x, x, "sulu"), "choose from"),
        (lambda: ops.attention(*[x[None, None]] * 3, score="no such"), "unknown score"),
        (lambda: ops.cross_entropy(x, torch.tensor([0, 1]), reduction="avg"), "unknown reduction"),
        (lambda: ops.score_function("causal")(lambda *a: a[0]), "is there already"),
    ):
        with pytest.raises(UsageError, match=said):
            call()
