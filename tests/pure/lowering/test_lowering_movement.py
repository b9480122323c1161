"""Views, movement, indexing and losses: bitwise where no arithmetic is done."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from lowered import capture, check, comps, externs, lowered, run

from torchweld.capture import decompose
from torchweld.capture import lower as lowering
from torchweld.capture.joint import write_in_place
from torchweld.capture.lower import Lowered, lower
from torchweld.capture.lowering import call
from torchweld.capture.lowering.call import spec_of
from torchweld.capture.lowering.rows import ROWS
from torchweld.core import dtypes, events
from torchweld.core.options import Options
from torchweld.ir.access import addressed
from torchweld.ir.nodes import Load

aten = torch.ops.aten
INDEX = torch.tensor([[0, 3, 2], [1, 1, 4]])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def rand(*shape):
    return torch.randn(*shape)


def test_views_read_in_place():
    def viewed(x):
        return [
            x.view(6, 20) + 1,
            x.permute(2, 0, 1, 3).reshape(4, 30) * 2,
            x[:, 1:, ::2] + 1,
            x[1] + x[0],
            x.view(2, 3, 2, 2, 5).transpose(1, 3).reshape(-1) + 0,
            x.flip(1) + x,
            x.diagonal(0, 0, 1) + 1,
            x.expand(3, 2, 3, 4, 5) + 1,
            x.unbind(1)[2] + 1,
            x.split(2, 1)[1] * 2,
            x.unfold(3, 2, 2) * 2,
            x.unfold(3, 3, 1) * 2,
            x.view(120)[7:100:3] + 1,
            *[c + 1 for c in x.chunk(3, 3)],
        ]

    check(viewed, rand(2, 3, 4, 5))


def test_a_reshape_that_does_not_divide_is_laid_out_flat():
    check(
        lambda x: [x.reshape(8, 15) + 1, x.permute(2, 0, 1, 3).reshape(15, 8) + 1], rand(2, 3, 4, 5)
    )


def test_mixed_shapes_meet_without_copies():
    def meet(x, y):
        return [
            x.view(6, 20) + y.view(2, 3, 4, 5).view(6, 20),
            (x.view(2, 3, 20) * y.reshape(2, 3, 20)).sum((0, 1)),
        ]

    result = check(meet, rand(6, 20), rand(2, 3, 4, 5))
    assert len(comps(result)) == 3  # add, mul, sum


def test_outputs_have_eagers_layout_and_memory_of_their_own():
    def outputs(x):
        return [
            x.transpose(0, 1),
            x.clone(),
            x[1:],
            x.permute(1, 0, 2, 3).reshape(3, -1),
            x.flip(0),
            x.repeat(2, 1, 1, 1),
            torch.zeros(3),
            torch.ones(2, 2),
            torch.zeros(3),
            torch.arange(5),
            x,
            x.contiguous(),
            x + 0,
            (x + 0).t() if x.dim() == 2 else x.mT,
        ]

    result = check(outputs, rand(2, 3, 4, 5))
    copied = [v.buffer for v in result.graph.outputs[6:9:2]]
    assert len(set(copied)) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_joining(dtype):
    x, y = rand(2, 3, 4).mul(3).to(dtype), rand(2, 5, 4).mul(3).to(dtype)
    check(
        lambda x, y: [
            torch.cat([x, y], 1),
            torch.cat([x, x], 0),
            torch.stack([x, y[:, :3]], -1),
            torch.cat([x, y, x], -2),
            torch.stack([x, x]),
        ],
        x,
        y,
    )


def test_cat_of_merged_heads_needs_no_copy():
    def merged(q, k):
        return torch.cat([t.transpose(1, 2).reshape(2, 5, 12) for t in (q, k)], -1)

    assert len(comps(check(merged, rand(2, 3, 5, 4), rand(2, 3, 5, 4)))) == 1


def test_padding_of_integers():
    """A float among integers is a number of their kind, wherever the read goes."""
    ids = torch.arange(6).view(2, 3)
    result = check(lambda i: F.pad(i, (1, 2), value=0.0), ids)
    (load,) = [i for i in comps(result)[0].body if isinstance(i, Load)]
    assert type(load.fill) is int


def test_padding():
    check(
        lambda x: [
            F.pad(x, (1, 2)),
            F.pad(x, (1, -1, -1, 2), value=7.0),
            F.pad(x, (2, 2), mode="reflect"),
            F.pad(x, (2, 1), mode="replicate"),
        ],
        rand(2, 3, 4),
    )
    check(
        lambda x: [
            F.pad(x, (2, 1, 1, 2), mode="reflect"),
            F.pad(x, (2, 1, 3, 2), mode="replicate"),
            F.interpolate(x, scale_factor=2),
            F.interpolate(x, size=(7, 3)),
        ],
        rand(2, 3, 4, 5),
    )


def test_windows_of_images():
    x = torch.randn(2, 3, 9, 7)

    def unfolded(x):
        return (
            F.unfold(x, 3, padding=1),
            F.unfold(x, (2, 3), dilation=2, padding=(0, 2), stride=(3, 1)),
            F.unfold(x.transpose(1, 3), 1, stride=2),
            F.unfold(x[:1], (9, 7)).relu(),
        )

    check(unfolded, x)
    check(unfolded, x.bfloat16())


def test_windows_of_other_images_are_atens():
    called = externs(lowered(lambda x: F.unfold(x, 3), torch.randn(3, 9, 7)))
    assert called == ["aten.im2col.default"]


def test_writing_into_windows():
    def written(x, p):
        return [
            aten.slice_scatter(x, p, 1, 1, 4),
            aten.slice_scatter(x, p, 1, 0, 6, 2),
            aten.select_scatter(x, p[:, 0], 1, -2),
            aten.diagonal_scatter(x, p[:, 0, :1].expand(2, 6).t(), 0, 0, 2),
            aten.slice_backward(p, [2, 7, 4], 1, 2, 5, 1),
            aten.select_backward(p, [2, 5, 3, 4], 1, 1),
        ]

    check(written, rand(2, 6, 4), rand(2, 3, 4))


def test_rolling_and_repeating():
    check(
        lambda x: [
            x.roll(1, 0),
            x.roll((1, -2), (1, 2)),
            x.roll(3),
            x.repeat(1, 2, 3),
            x.repeat(2, 1, 1, 1),
        ],
        rand(2, 3, 4),
    )


def test_positions_decide():
    check(
        lambda x: [
            x.triu(1),
            x.tril(),
            x.tril(-1),
            torch.eye(3, 4),
            torch.arange(3, 10, 2) + 0,
            torch.arange(0, 1, 0.25),
            torch.full((2, 2), float("-inf")).triu(1),
        ],
        rand(2, 3, 4),
    )


def test_causal_mask_takes_no_memory():
    def mask(x):
        at = torch.arange(5)
        return torch.where(at[:, None] >= at[None, :], x, float("-inf"))

    assert all(
        not c.reads or c.reads == ("flat_1",) or c.reads[0] != "arange"
        for c in comps(check(mask, rand(5, 5)))
    )


def test_indexing():
    check(lambda w, i: F.embedding(i, w), rand(5, 7), INDEX)
    check(lambda x, i: [x.gather(1, i), x.t().gather(0, i[:, :2])], rand(2, 5), INDEX)
    check(lambda x, i: [x.index_select(1, i[0]), x.index_select(0, i[1, :1])], rand(2, 5, 3), INDEX)
    check(
        lambda x, i: [x[i], x[:, i], x[i, i], x[:, i, :, i[0]], x[None, i, -1], x[-i]],
        rand(5, 5, 3, 5),
        INDEX,
    )


def test_indirect_writes():
    check(
        lambda x, i, s: [
            x.scatter_add(1, i, s),
            x.scatter_reduce(1, i, s, "amax"),
            x.scatter(1, i, 1.5),
            aten.index_add(x, 1, i[0], s, alpha=2),
        ],
        rand(2, 5),
        INDEX,
        rand(2, 3),
    )
    check(
        lambda x, i, s: [
            aten.index_put(x, [i], s, True),
            aten.index_put(x, [None, i], s[0, 0, :1], False),
            aten.index_put(x, [x > 0], s[0, 0, 0]),
        ],
        rand(5, 7),
        INDEX,
        rand(2, 3, 7),
    )


def step(cache, at, row):
    cache[:, at] = row
    return cache + 1


def lowered_step(places: list[int]) -> Lowered:
    captured = capture(step, rand(3, 5, 4), torch.tensor(places), rand(3, len(places), 4))
    write_in_place(captured.module)
    return lower(captured, Options())


def test_one_row_of_a_cache_is_written_by_a_kernel():
    result = lowered_step([-2])
    assert externs(result) == []
    cache, at, row = rand(3, 5, 4), torch.tensor([-2]), rand(3, 1, 4)
    (got,) = run(result, [cache.clone(), at, row], exact=True)
    torch.testing.assert_close(got, step(cache, at, row).double())


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("strict", [False, True])
def test_several_rows_of_a_cache_are_written_by_a_kernel_on_a_gpu(monkeypatch, device, strict):
    """The last may be the second write to one element, which some want to be the same each time."""
    for module in (call, lowering):
        monkeypatch.setattr(module, "spec_of", lambda *a: replace(spec_of(*a), device=device))
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: strict)
    calls = externs(lowered_step([2, 0]))
    assert calls == ([] if device != "cpu" and not strict else ["aten.index_put_.default"])


@pytest.mark.parametrize("d, at", [(1, [[3], [0]]), (0, [[1, 0, 0, 1, 1]]), (-1, [[2], [4]])])
def test_one_element_for_each_row_is_a_comparison(d, at):
    index = torch.tensor(at)
    result = check(
        lambda x, i, s: [
            x.scatter(d, i, s), x.scatter(d, i, 1.5), x.scatter_add(d, i, s),
            x.scatter_reduce(d, i, s, "amin"), torch.zeros_like(x).scatter(d, i, s) * 2,
        ],
        rand(2, 5), index, rand(*index.shape),
    )  # fmt: skip
    assert not any(s.combine or s.init is not None for c in comps(result) for s in c.stores)


@pytest.mark.parametrize("function", [
    lambda x, at, s: x.scatter_reduce(1, at, s, "amax"), lambda x, at, s: x.scatter(1, at, s),
])  # fmt: skip
def test_one_element_for_each_row_needs_no_call_on_a_gpu(monkeypatch, function):
    for module in (call, lowering):
        monkeypatch.setattr(module, "spec_of", lambda *a: replace(spec_of(*a), device="cuda:0"))
    one, two = (torch.zeros(3, n, dtype=torch.int64) for n in (1, 2))
    assert externs(lowered(function, rand(3, 5), one, rand(3, 1))) == []
    assert len(externs(lowered(function, rand(3, 5), two, rand(3, 2)))) == 1


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("name", "alone"), [
    ("scatter_add", True), ("scatter_reduce", True), ("index_add", True),
    ("_unsafe_index_put", True), ("index_put", False), ("embedding_dense_backward", False),
])  # fmt: skip
def test_sums_by_index_on_a_gpu(monkeypatch, name, alone, strict):
    """By atomics where eager's call has them, too, and the user has not asked for one order; in
    float32. What eager sorts for stays eager's."""
    for module in (call, lowering):
        monkeypatch.setattr(module, "spec_of", lambda *a: replace(spec_of(*a), device="cuda:0"))
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: strict)
    x, at, s = rand(5, 7).bfloat16(), INDEX[0], rand(3, 7).bfloat16()
    every = at[:, None].expand(3, 7)
    function = {
        "scatter_add": lambda x, at, s: x.scatter_add(0, every, s),
        "scatter_reduce": lambda x, at, s: x.scatter_reduce(0, every, s, "sum"),
        "index_add": lambda x, at, s: x.index_add(0, at, s),
        "_unsafe_index_put": lambda x, at, s: aten._unsafe_index_put(x, [at], s, True),
        "index_put": lambda x, at, s: x.index_put([at], s, True),
        "embedding_dense_backward":
            lambda x, at, s: aten.embedding_dense_backward(s, at, 20000, -1, False),
    }[name]  # fmt: skip
    result = lowered(function, x, at, s)
    by_atomics = [s for c in comps(result) for s in c.stores if s.combine]
    assert len(by_atomics) == (alone and not strict) == (not externs(result))
    assert all(result.graph.buffers[s.buffer].dtype == dtypes.f32 for s in by_atomics)


@pytest.mark.parametrize(("rows", "dtype", "by_atomics"), [
    (1 << 17, torch.bfloat16, False), (1 << 17, torch.float32, True), (500, torch.bfloat16, True),
])  # fmt: skip
def test_a_large_result_is_not_widened_for_a_few_sums(monkeypatch, rows, dtype, by_atomics):
    for module in (call, lowering):
        monkeypatch.setattr(module, "spec_of", lambda *a: replace(spec_of(*a), device="cuda:0"))
    x, s = torch.empty(rows, 16, dtype=dtype), torch.empty(3, 16, dtype=dtype)
    result = lowered(lambda x, s: x.index_add(0, torch.arange(3), s), x, s)
    assert by_atomics == (not externs(result))


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_extremes_are_scattered_by_the_library_on_a_gpu(monkeypatch, device):
    """Its atomics know no NaN."""
    for module in (call, lowering):
        monkeypatch.setattr(module, "spec_of", lambda *a: replace(spec_of(*a), device=device))
    x, at = rand(3, 5), torch.zeros(3, 5, dtype=torch.int64)
    result = lowered(lambda x, at: x.scatter_reduce(0, at, x * 2, "amax"), x, at)
    assert externs(result) == ([] if device == "cpu" else ["aten.scatter_reduce.two"])


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_no_index_is_checked_where_there_is_none(monkeypatch, device):
    for module in (call, lowering):
        monkeypatch.setattr(module, "spec_of", lambda *a: replace(spec_of(*a), device=device))
    lowered(lambda x, at: x.gather(0, at.view(-1)), rand(5), rand(0).long())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_of_an_embedding_is_summed_wide(dtype):
    grad = rand(2, 3, 7).to(dtype)
    check(lambda g, i: aten.embedding_dense_backward(g, i, 5, 1, False), grad, INDEX)
    check(lambda g, i: aten.embedding_dense_backward(g, i, 5, -1, False), grad, INDEX)


def test_losses():
    x, target, weight = rand(6, 5).log_softmax(1), INDEX.view(-1), rand(5).abs()
    check(
        lambda x, t, w: [
            F.nll_loss(x, t),
            F.nll_loss(x, t, weight=w, reduction="sum"),
            F.cross_entropy(x, t, ignore_index=2),
            F.nll_loss(x, t, reduction="none", ignore_index=2),
        ],
        x,
        target,
        weight,
    )
    check(
        lambda x, t: [F.nll_loss(x, t), F.nll_loss(x, t, reduction="none", ignore_index=2)],
        rand(2, 5, 3, 1).log_softmax(1),
        INDEX.view(2, 3, 1),
    )
    check(
        lambda x, y: [
            F.mse_loss(x, y),
            F.mse_loss(x, y, reduction="sum"),
            aten.mse_loss_backward(x.sum(), x, y, 1),
        ],
        rand(3, 4),
        rand(3, 4),
    )


def test_order_dependent_writes_stay_with_aten():
    """But for those of `scatter` on a CPU, which has an order: the last along the dimension."""
    same = torch.tensor([[4, 1, 4], [2, 2, 2]])
    check(lambda x, i, s: [x.scatter(1, i, s)], rand(2, 5), same, rand(2, 3))
    assert externs(
        lowered(lambda x, i, s: aten.index_put(x, [i], s), rand(5, 7), INDEX, rand(2, 3, 7))
    ) == ["aten.index_put.default"]


def test_random_operations_stay_in_order():
    result = lowered(lambda x: [torch.rand_like(x), x + 1, torch.bernoulli(x.sigmoid())], rand(3))
    assert externs(result) == ["aten.rand_like.default", "aten.bernoulli.default"]


def test_overlapping_memory_is_read_by_its_window():
    check(lambda x: [torch.as_strided(x, (2, 3), (60, 20)) + 1], rand(2, 3, 4, 5))
    check(lambda x: [torch.as_strided(x.exp(), (2, 3), (60, 20), 5) + 1], rand(2, 3, 4, 5))
    assert externs(lowered(lambda x: torch.as_strided(x, (3, 3), (1, 2)), rand(2, 3, 4, 5))) == [
        "aten.as_strided_copy.default"
    ]


@pytest.mark.parametrize("base", [
    lambda x: x[:, 1:, :4].contiguous(),
    lambda x: x.transpose(1, 2).clone(memory_format=torch.contiguous_format),
    lambda x: x.transpose(1, 2).clone(),  # as it lay
    lambda x: x[:, :1].expand(2, 3, 5).clone(),
])  # fmt: skip
def test_windows_on_a_copy(base):
    def windows(x):
        y = base(x)
        return [torch.as_strided(y, (2, 2, 3), (y.stride(0), y.stride(1), y.stride(2))).exp()]

    check(windows, rand(2, 4, 5))


@pytest.mark.parametrize("strides", [(6,), (11,), (4,)])
def test_windows_that_step_along_two_dimensions(strides):
    """Diagonals, of which the last leaves its row and is a copy."""
    lies_within = strides != (4,)
    check(lambda x: [torch.as_strided(x.exp(), (3,), strides, 1) * 2], rand(6, 5),
          all_lowered=lies_within)  # fmt: skip


def test_a_copy_of_what_is_written_later_is_made():
    def stepped(x):
        before = x.clone()
        x.add_(1)
        return [before.flip(0), before]

    x = rand(4)
    result = lowered(stepped, x)
    assert not externs(result)
    given = x.clone()
    flipped, before = run(result, [given], exact=False)
    assert torch.equal(before, x) and torch.equal(flipped, x.flip(0)) and torch.equal(given, x + 1)


def test_a_matrix_that_two_products_read_both_ways_is_copied_once():
    def gradients(g, x, w):
        flat = g.transpose(0, 1).reshape(5, 12)
        return [flat @ w, flat.t() @ x]

    result = check(gradients, rand(3, 5, 4), rand(5, 6), rand(12, 2), all_lowered=False)
    assert len(comps(result)) == 1


def test_new_full():
    check(lambda x: [x.new_full((2, 3), 0.5) + x[0, :3], x.new_full((4,), 7)], rand(2, 5))


def test_an_operation_whose_lowering_fails_is_a_call(monkeypatch):
    real = ROWS["aten.exp.default"]

    def failing(call, x):
        real(call, x)
        raise TypeError("not this one")

    monkeypatch.setitem(ROWS, "aten.exp.default", failing)
    events.clear()
    with pytest.warns(events.TorchweldWarning, match="aten.exp.default.* is left to ATen"):
        found = lowered(lambda x: [x.exp().sin() + x.flip(0)], rand(3, 5))
    assert externs(found) == ["aten.exp.default"]


def test_a_write_to_no_place():
    """One value at no index: an index of no elements varies along nothing."""

    def writes(x, at):
        five = torch.tensor(5.0, dtype=x.dtype)
        put = x.sin().index_put((at[:0],), five) * 2
        return [put, x.sin().scatter(0, at[:0], 1.5) * 2, x.index_put((at[:0],), five)]

    check(writes, rand(4), torch.arange(3))
    check(lambda x, at: x.exp().scatter(0, at[:0], 1.5) * 2, torch.empty(0), torch.arange(3))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.flatten(1),
        lambda x: x.transpose(1, 2).flatten(1),
        lambda x: x[:, ::2, 1:].flatten(1),
        lambda x: x.permute(0, 3, 1, 2).flatten(1),
    ],
)
def test_an_index_into_merged_dimensions_reads_them_where_they_are(view):
    """A dimension in pieces is not copied to be one: the index is taken apart."""
    index = torch.tensor([0, 17, 5, 23, 11])
    rows = torch.randint(0, 24, (3, 7))

    def read(x):
        flat = view(x)
        return [flat.gather(1, rows), flat.index_select(1, index), flat[:, index] + 1]

    result = check(read, rand(3, 4, 5, 6))
    assert not any(c.name.startswith(("copy", "flatten")) for c in comps(result))


@pytest.mark.parametrize(
    ("shape", "view", "strides"),
    [
        ((3, 4, 5), lambda x: x.flatten(1), [1]),
        ((3, 4, 5, 6), lambda x: x.flatten(1), [1]),
        ((3, 8, 5), lambda x: x.permute(0, 2, 1).flatten(1), [1, 5]),
        ((3, 4, 5), lambda x: x[:, :, 1:].flatten(1), [1, 5]),
    ],
)
def test_a_flat_index_of_contiguous_memory_is_not_divided(shape, view, strides):
    rows = torch.randint(0, 16, (3, 7))
    result = lowered(lambda x, i: [view(x).gather(1, i)], rand(*shape), rows)
    (comp,) = (c for c in comps(result) if "flat_1" in c.reads)
    accesses = addressed(comp, result.graph.buffers)
    found = [a.refs for a in accesses.loads.values() if a.refs]
    assert [sorted(stride for _, stride in refs) for refs in found] == [strides]


@pytest.mark.parametrize("value", [2.0, torch.tensor(2.0, dtype=torch.float64)], ids=str)
@pytest.mark.parametrize("dim", [0, -1])
def test_slices_of_a_turned_matrix_are_filled_by_one_write(dim, value):
    """No copy into other strides behind it, nor a write that is none of a functional graph."""
    x, index = torch.randn(5, 3).t(), torch.tensor([1, -1])

    def filled(x, index):
        return decompose.table()[aten.index_fill.int_Scalar](x, dim, index, value)

    result = lowered(filled, x, index)
    assert not externs(result)
    (found,) = run(result, (x, index), exact=False)
    expected = x.index_fill(dim, index, 2.0)
    assert torch.equal(found, expected) and found.stride() == expected.stride()


def test_ends_of_a_range_on_another_device_make_a_call():
    """torch's decomposition of it would mix devices."""
    spaced = decompose.table()[aten.linspace.Scalar_Tensor]
    end = torch.tensor(2.0)
    assert spaced(0, end.to("meta"), 3, device="cpu") is NotImplemented
    assert torch.equal(spaced(0, end, 3, device="cpu"), torch.linspace(0, end, 3))
