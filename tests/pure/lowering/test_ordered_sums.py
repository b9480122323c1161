"""Sums by index on a GPU whose order eager keeps: gradients of x[index] and of embeddings, by one
sort of the indices for all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lowered import check, comps, externs, lowered

from torchweld.capture import lower as lowering
from torchweld.capture.lowering import call, scatter
from torchweld.capture.lowering.call import spec_of

aten = torch.ops.aten
AT = torch.tensor([[4, 0, -1, 2], [0, 0, -5, 2]])  # of five
SORT = "aten.sort.stable"


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(scatter, "_FEW_INDICES", 0)
    for module in (call, lowering):
        monkeypatch.setattr(module, "spec_of", lambda *a: replace(spec_of(*a), device="cuda:0"))


def runs(result) -> int:
    return sum(s.combine == "add_runs" for c in comps(result) for s in c.stores)


def put(indices, values, *shape):
    zeros = torch.zeros(shape, dtype=values.dtype)
    return aten.index_put(zeros, indices, values, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("function", "shape"), [
    (lambda i, v: put([i], v * 2, 5, 7), (2, 4, 7)),
    (lambda i, v: put([None, i], v, 3, 5, 7), (3, 2, 4, 7)),
    (lambda i, v: put([i], v.t(), 5, 7), (7, 1)),  # one row for all, transposed
    (lambda i, v: put([i[0]], v[:, 0], 5), (4, 3)),
    (lambda i, v: put([i], v.movedim(0, 2), 5, 7), (7, 2, 4)),
    (lambda i, v: put([i, -i - 1], v, 5, 5, 7), (2, 4, 7)),  # two indices are joined
    (lambda i, v: put([i[:, :1], i - 2], v, 5, 9, 7), (2, 4, 7)),
    (lambda i, v: put([None, i, i[0], i[:, 1:2]], v, 3, 5, 5, 6, 7), (3, 2, 4, 7)),
    (lambda i, v: put([i.unsqueeze(-1), torch.arange(7)], v, 5, 8), (2, 4, 7)),
])  # fmt: skip
def test_gradients_of_rows(function, shape, dtype):
    result = check(function, AT, torch.randn(shape).to(dtype), all_lowered=False)
    assert runs(result) == 1 and externs(result) == [SORT]


@pytest.mark.parametrize("padding", [-1, 3])
@pytest.mark.parametrize("shape", [(11,), (2, 3), (1, 2)])
def test_gradients_of_embeddings(shape, padding):
    at = torch.randint(0, 6, shape)
    gradient = torch.randn(*shape, 5).bfloat16()
    result = check(lambda g, i: aten.embedding_dense_backward(g, i, 6, padding, False),
                   gradient, at, all_lowered=False)  # fmt: skip
    assert runs(result) == 1 and externs(result) == [SORT]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("padding", [-1, 3])
@pytest.mark.parametrize("shape", [(11,), (2, 3), (1, 2), (300,)])
def test_few_sums_of_few_rows_look_at_all(monkeypatch, shape, padding, dtype):
    monkeypatch.setattr(scatter, "_FEW_INDICES", 300)
    at = torch.randint(0, 6, shape)
    gradient = torch.randn(*shape, 5).to(dtype)
    result = check(lambda g, i: aten.embedding_dense_backward(g, i, 6, padding, False),
                   gradient, at)  # fmt: skip
    assert not runs(result) and not externs(result)


@pytest.mark.parametrize(("strides", "copies"), [
    ((7, 0, 1), 0),  # one row for a bag
    ((0, 7, 1), 0),
    ((7, 21, 1), 0),  # bags along the first dimension
    ((1, 5, 15), 1),  # no lines
])  # fmt: skip
def test_what_is_added_is_read_where_it_lies(strides, copies):
    """A gradient of sums over bags of rows is never written out for all of their rows."""
    at = torch.tensor([[4, 0, -1], [0, 0, -5], [1, 4, 1], [2, 0, 2], [4, 3, 2]])

    def function(i, v):
        return put([i], v.as_strided((5, 3, 7), strides), 5, 7)

    result = check(function, at, torch.randn(140), all_lowered=False)
    assert runs(result) == 1 and externs(result) == [SORT]
    assert sum(not s.combine and s.buffer.startswith(("copy", "flatten"))
               for c in comps(result) for s in c.stores) == copies  # fmt: skip


def test_equal_indices_are_sorted_once():
    result = check(lambda i, v: [put([i], v, 5, 7), put([i], v.cos(), 5, 7), put([i + 0], v, 5, 7)],
                   AT, torch.randn(2, 4, 7), all_lowered=False)  # fmt: skip
    assert runs(result) == 3 and externs(result) == [SORT] * 2


def test_joined_indices_are_sorted_once():
    def function(i, j, v):
        return put([i, j], v, 5, 6, 7), put([i, j], v.cos(), 5, 6, 7), put([j, i], v, 6, 5, 7)

    result = check(function, AT, AT - 1, torch.randn(2, 4, 7), all_lowered=False)
    assert runs(result) == 3 and externs(result) == [SORT] * 2


@pytest.mark.parametrize(("rows", "dtype"), [
    (255, "u8"), (256, "i16"), (32767, "i16"), (65535, "i16"), (65536, "i32"),
])  # fmt: skip
def test_keys_are_as_narrow_as_they_can_be(rows, dtype):
    """Passes of the sort are as many as their bytes."""
    at = torch.tensor([rows - 1, 0, -1, rows // 2 + 1, 5, 5, 300 % rows])
    result = check(lambda i, v: put([i], v, rows), at, torch.randn(7), all_lowered=False)
    assert runs(result) == 1
    (sort,) = (n for n in result.graph.nodes if getattr(n, "target", "") == SORT)
    assert result.graph.buffers[sort.reads[0]].dtype.name == dtype


@pytest.mark.parametrize("function", [
    lambda i, v: put([i, None, i], v[..., :3], 5, 3, 5),
    lambda i, v: put([None, i, None, i], v[..., :3, None], 3, 5, 1, 5),
    lambda i, v: aten.index_put(v[0, :1].expand(5, 7), [i], v, True),
    lambda i, v: put([i, i], v[..., 0], 1 << 16, 1 << 15),
    lambda i, v: put([i * 0], v, 1, 7),
])  # fmt: skip
def test_others_stay_with_aten(function):
    result = lowered(function, AT, torch.randn(2, 4, 7))
    assert not runs(result) and externs(result) == ["aten.index_put.default"]


def test_integers_are_added_by_atomics():
    result = lowered(lambda i, v: put([i], (v * 8).long(), 5, 7), AT, torch.randn(2, 4, 7))
    assert not externs(result) and not runs(result)


def test_one_index_needs_no_order():
    result = check(lambda i, v: put([i[:1, :1]], v[0, 0], 5, 7), AT, torch.randn(2, 4, 7))
    assert not runs(result)


@pytest.mark.parametrize(("rows", "sizes"), [(1, (3, 4)), (6, ("s", 4))])
def test_the_gradient_of_an_embedding_stays_with_aten_within_its_rows(rows, sizes):
    """Whose call writes wherever an index points."""
    mode = "symbolic" if "s" in sizes else "fake"
    at, gradient = torch.zeros(3, 4, dtype=torch.int64), torch.randn(3, 4, 5)
    result = lowered(lambda g, i: aten.embedding_dense_backward(g, i, rows, -1, False), gradient,
                     at, mode=mode)  # fmt: skip
    assert externs(result) == ["aten.embedding_dense_backward.default"]
    (call,) = (n for n in result.graph.nodes if getattr(n, "target", "") in externs(result))
    assert call.args[1].buffer not in result.graph.inputs


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize(("indices", "values", "shape"), [
    (lambda i: [torch.arange(5), i], (5,), (5, 4)),
    (lambda i: [i, torch.arange(5)], (5, 3), (4, 5, 3)),
    (lambda i: [torch.arange(1, 6), i], (5, 3), (7, 4, 3)),  # some rows get nothing
    (lambda i: [torch.arange(5), None, i], (5, 3), (5, 3, 4)),
    (lambda i: [None, torch.arange(5), i, -1 - i], (3, 5), (3, 5, 4, 6)),
    (lambda i: [torch.arange(5), i[:1]], (1,), (5, 4)),
    (lambda i: [torch.arange(5), torch.arange(5)], (), (5, 5)),
])  # fmt: skip
def test_rows_that_get_one_element_each_are_a_choice(indices, values, shape, dtype, accumulate):
    """x[arange(n), labels], without a sort or a scatter."""
    at = torch.tensor([3, 0, -1, 3, -4])

    def function(x, i, v):
        return aten.index_put(x, indices(i), v, accumulate)

    x, v = (torch.randn(s).mul(9).to(dtype) for s in (shape, values))
    result = check(function, x, at, v)
    assert not any(s.combine for c in comps(result) for s in c.stores if s.init != 0)


def test_nothing_is_added():
    at = torch.zeros(0, dtype=torch.int64)
    result = lowered(lambda i, v: put([i], v, 5, 7), at, torch.randn(0, 7))
    assert not runs(result) and not externs(result)


@pytest.mark.parametrize("shape", [(4,), (1, 4)])
def test_gradients_of_positions_are_copies(shape):
    def function(g):
        return aten.embedding_dense_backward(g, torch.arange(2, 6).view(shape), 7, 0, False)

    result = check(function, torch.randn(*shape, 5))
    assert externs(result) == [] and not any(s.combine for c in comps(result) for s in c.stores)
    padded = lowered(lambda g: aten.embedding_dense_backward(g, torch.arange(4), 7, 0, False),
                     torch.randn(4, 5))  # fmt: skip
    assert runs(padded) == 1
