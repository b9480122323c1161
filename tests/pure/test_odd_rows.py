"""Products of odd rows in parts: which ones, where the parts are, what comes out."""

from __future__ import annotations

import pytest
import torch

from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.nodes import Extern, Graph
from torchweld.ir.parser import parse_graph
from torchweld.runtime.odd_rows import product_in_parts
from torchweld.targets.find import named_target
from torchweld.templates.library.calls import gpu_calls
from torchweld.templates.library.odd_rows import ODD_ROWS, aligned_columns, parts

H100 = named_target("H100")


def head(m=8192, n=50257, k=768, dtype="bf16", output="y") -> Graph:
    """x = v; y = x @ w.T; z = y.T @ x"""
    graph = parse_graph(f"""graph g {{
  buffer x : {dtype}[{m}, {k}] strides [{k}, 1] on cuda:0
  buffer w : {dtype}[{n}, {k}] strides [{k}, 1] on cuda:0
  buffer y : {dtype}[{m}, {n}] strides [{n}, 1] on cuda:0
  buffer z : {dtype}[{n}, {k}] strides [{k}, 1] on cuda:0
  buffer v : {dtype}[{m}, {k}] strides [{k}, 1] on cuda:0
  input v, w
  comp x [i:{m}, j:{k}] {{
    %0 = load v[i, j] : {dtype}
    store x[i, j] %0
  }}
  extern y y = "aten.mm.default"(view(x, [{m}, {k}], [{k}, 1], 0), view(w, [{k}, {n}], [1, {k}], 0)) {{
  }}
  extern z z = "aten.mm.default"(view(y, [{n}, {m}], [1, {n}], 0), view(x, [{m}, {k}], [{k}, 1], 0)) {{
  }}
  output view({output}, [1], [1], 0)
}}""")  # noqa: E501
    check_graph(graph)
    return graph


def targets(graph: Graph, kind="inference") -> list[str]:
    found = gpu_calls(graph, Options(), kind)
    check_graph(found)
    return [n.target for n in found.nodes if isinstance(n, Extern)]


def test_a_large_result_that_the_caller_sees():
    assert targets(head()) == [ODD_ROWS, "aten.mm.default"]


@pytest.mark.parametrize(
    "change",
    [dict(n=50256), dict(m=64), dict(n=2049, m=65536), dict(k=767), dict(dtype="f32"),
     dict(output="z")],
)  # fmt: skip
def test_others_stay_calls_of_aten(change):
    assert set(targets(head(**change))) == {"aten.mm.default"}


def test_training_stays_as_it_is():
    assert set(targets(head(), "forward")) == {"aten.mm.default"}


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(8192, 50257), (8192, 50263), (1, 4099), (255, 4099), (256, 4099), (257, 4099), (512, 30522),
     (513, 30522), (100003, 5003)],
)  # fmt: skip
def test_parts_lie_in_what_is_free(rows, columns):
    pitch, done, own = -(-columns // 64) * 64, 0, 0
    for first, count, place in parts(rows, columns, pitch):
        assert first == done and count > 0
        done += count
        if place is None:
            own = max(own, count)
        else:
            assert place % 16 == 0 and done * columns <= place
            assert place + count * pitch <= rows * columns
    assert done == rows and own <= 256


@pytest.mark.parametrize(("rows", "columns"), [(1500, 1003), (3, 1001), (700, 1009)])
def test_the_product(rows, columns):
    def move(part, last, target):
        """Into NaN: what is read must not be what is written."""
        moved = torch.cat([part, last], 1)
        target.fill_(float("nan"))
        target.copy_(moved)

    torch.manual_seed(0)
    a = torch.randn(rows, 32, dtype=torch.bfloat16)
    b = torch.randn(columns, 32, dtype=torch.bfloat16).t()
    found, wanted = product_in_parts(a, b, move), a.double() @ b.double()
    assert found.is_contiguous() and found.shape == wanted.shape
    assert (found - wanted).norm() <= 3e-3 * wanted.norm()


def test_one_part_has_memory_of_its_own(monkeypatch):
    """Of the last 511 rows none fit into what is left: two parts, one after the other."""
    made = []
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda t, n: made.append(n) or new_empty(t, n))
    a, b = torch.ones(511, 32), torch.ones(1003, 32).t()
    assert [place for _, _, place in parts(511, 1003, 1024)] == [None, None]
    assert product_in_parts(a, b, lambda *tensors: None).shape == (511, 1003)
    assert made == [511 * 1003, 256 * 1024]


def test_whole_units_of_columns():
    assert [aligned_columns(n, 2) for n in (50257, 50256, 7)] == [50256, 50256, 0]
