"""campaign/listed.py: listed limits are told apart from wrong results, and excuse none of them."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from torchweld.exact import fuzz
from torchweld.exact.campaign import __main__ as command
from torchweld.exact.campaign import listed, staged
from torchweld.exact.campaign.cases import KINDS
from torchweld.exact.campaign.checks import CHECKS, interpreted
from torchweld.exact.campaign.listed import INFINITE, ROUNDING, STRIDES, limits_of
from torchweld.exact.campaign.operators import Sample
from torchweld.exact.campaign.record import Finished, Log
from torchweld.exact.campaign.run import Campaign, run, run_seed
from torchweld.exact.campaign.staged import Interpreter
from torchweld.exact.programs import Input, Program
from torchweld.ir.parser import parse_graph
from torchweld.passes.table import PASSES

F32 = torch.float32
INF, NAN = float("inf"), float("nan")
TURNED = Program((Input((3, 5), F32),), ("v0 = x0.sin().t()", "v1 = v0.sum()"), ("v0", "v1"))
UNFOLD = Program((Input((2, 5, 6), F32),), ("v0 = F.unfold(x0.sin(), 2)",), ("v0",))
NOTE = fuzz.NO_NUMBERS
STRIDED = "v0: strides (1, 5) instead of (3, 1)"
REORDERED = f"forward, pass 'scores', result 8: 296 of 1680 elements differ{NOTE}"


@pytest.mark.parametrize(("found", "limits"), [
    ([STRIDED], (STRIDES,)),
    ([REORDERED], (INFINITE,)),
    ([REORDERED.replace("scores", "plan"), STRIDED, REORDERED], (INFINITE, STRIDES)),
    ([], ()),
    # strides that torch does not predict, or of something else
    (["v0: strides (3, 1) instead of (1, 5)"], ()),
    (["v0: strides (1, 5, 1) instead of (3, 1)"], ()),
    (["v1: strides (1, 5) instead of (3, 1)"], ()),
    (["x0 afterwards: strides (1, 5) instead of (3, 1)"], ()),
    # passes that order no sums, and differences in numbers
    ([REORDERED.replace("scores", "neighbours")], ()),
    ([REORDERED.replace(NOTE, "")], ()),
    ([f"{REORDERED}; largest error 1"], ()),
    # beside something wrong
    ([STRIDED, "v1: relative L2 error 1.00e+00 above 1.00e-06"], ()),
    ([REORDERED, "forward, pass 'plan', result 0: 1 of 1680 elements differ"], ()),
    (["fell back: " + STRIDED], ()),
    (["v0: RuntimeError: no kernel"], ()),
])  # fmt: skip
def test_all_that_was_found_must_be_listed(found, limits):
    assert limits_of(TURNED, found) == limits


def test_strides_that_cannot_be_predicted_excuse_nothing():
    """A shape that depends on data."""
    case = replace(TURNED, lines=("v0 = x0[x0 > 0].expand(3, -1).t()",), outputs=("v0",))
    assert limits_of(case, [STRIDED]) == ()


def test_strides_of_samples_are_predicted_too():
    """Whose inputs are drawn in the middle of their function."""
    case = Sample("div", "floor_rounding", 3, torch.float16, 1, before="turned")
    shape, predicted = listed._predicted(case, "result 0", "cpu")
    assert shape == [10, 5]
    found = f"result 0: strides ({predicted[0]}, {predicted[1]}) instead of (2, 7)"
    assert limits_of(case, [found]) == (STRIDES,)
    assert limits_of(case, [found.replace("strides (", "strides (1")]) == ()


OFFSET = Input((64,), F32, "plain", "offset")
ANGLE = Program((OFFSET,), ("v0 = x0.sum()", "v1 = v0.sin()"), ("v1",))
MOVED = Program((Input((64,), F32),), ("v0 = x0.flip(0)", "v1 = x0 * 3"), ("v0", "v1"))
TURNED_FACTOR = Program((Input((100, 2), F32), Input((3, 2), F32)), ("v0 = x0 @ x1.mT",), ("v0",))
SMALL = Program(
    (Input((2, 1), torch.float16),),
    ("v0 = ((x0 - x0) - 16.8).exp()", "v1 = v0 / v0.norm(dim=-1, keepdim=True)"),
    ("v1",),
)


@pytest.mark.parametrize(("case", "found", "limits"), [
    # sums of 6,400 have a last bit of 5e-4, which is an error of their sine and cosine
    (ANGLE, "v1: relative L2 error 2.00e-05 above 1.00e-06", (ROUNDING,)),
    (ANGLE, "gradient of x0: relative L2 error 2.00e-05 above 1.00e-06; largest error 1.00e-05 "
            "above 1.00e-06", (ROUNDING,)),
    (ANGLE, "gradient of x0: largest error 1.00e-05 above 1.00e-06", (ROUNDING,)),
    (ANGLE, "gradient of x0: largest error 1.00e-02 above 1.00e-06", ()),
    (ANGLE, "v1: relative L2 error 2.00e-05 above 1.00e-06; largest error 1.00e-01 above 1e-6", ()),
    (ANGLE, "v1: relative L2 error nan above 1.00e-06", ()),
    # what is moved, and products of numbers
    (MOVED, "v0: relative L2 error 1.00e-09 above 1.00e-10", ()),
    (MOVED, "v1: relative L2 error 5.00e-08 above 1.00e-10", (ROUNDING,)),
    (MOVED, "v1: relative L2 error 5.00e-07 above 1.00e-10", ()),
    (MOVED, "gradient of x0: largest error 1.00e-05 above 1.00e-10", ()),
    (TURNED_FACTOR, "v0: largest error 5.00e-08 above 1.00e-10", (ROUNDING,)),
    # float16 has no number between zero and 6e-8
    (SMALL, "v1: NaN: 2 elements, first at (0, 0): fused nan, eager 1.0", (ROUNDING,)),
    (SMALL, "v1: NaN: 3 elements, first at (0, 0): fused nan, eager 1.0", ()),
    (SMALL, "v1: infinity: 1 elements, first at (0, 0): fused inf, eager 1.0", ()),
    (MOVED, "v1: NaN: 1 elements, first at (3,): fused nan, eager 1.0", ()),
    (MOVED, "v7: NaN: 1 elements, first at (3,): fused nan, eager 1.0", ()),
])  # fmt: skip
def test_roundings_that_eager_may_have_made_are_listed(case, found, limits):
    assert limits_of(case, [found]) == limits


@pytest.mark.parametrize(("told", "limits"), [
    ([REORDERED], (INFINITE,)),
    ([REORDERED, f"v0: NaN: 1 elements, first at (0,): fused nan, eager inf{NOTE}"], (INFINITE,)),
    ([], ()),
    ([f"v0: NaN: 1 elements, first at (0,): fused nan, eager inf{NOTE}"], ()),
    ([REORDERED, "forward, pass 'taps apart', result 0: 1 of 9 elements differ"], ()),
    ([REORDERED.replace("scores", "taps apart")], ()),
])  # fmt: skip
def test_infinite_results_of_kernels_are_listed_where_the_interpreter_says_why(
    monkeypatch, told, limits
):
    monkeypatch.setattr(listed, "interpreted", lambda case, device: told)
    found = f"gradient of x0: NaN: 16 elements, first at (0, 0): fused nan, eager -inf{NOTE}"
    assert limits_of(TURNED, [found]) == limits
    assert limits_of(TURNED, [found.replace(NOTE, "")]) == ()


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values)


@pytest.mark.parametrize(("given", "wanted", "noted"), [
    (t(NAN, 1.0), t(INF, 1.0), True),
    (t(-INF, 1.0), t(NAN, 1.0), True),
    (t(NAN, 1.0), t(2.0, 1.0), False),
    (t(INF, 1.0), t(2.0, 1.0), False),
    (t(INF, 1.0), t(-INF, 1.0), False),
    (t(NAN, 1.5), t(INF, 1.0), False),
])  # fmt: skip
def test_only_nan_in_place_of_an_infinity_is_no_number(given, wanted, noted):
    """After a pass, and at the end: there with numbers that are compared apart."""
    assert staged._difference(wanted, given).endswith(NOTE) == noted
    told = fuzz._reason("v", given, wanted, wanted.double(), fuzz.BUDGET)
    assert told and told.endswith(NOTE) == noted
    moved = replace(fuzz.BUDGET, bitwise=True)
    assert not fuzz._reason("v", given, wanted, wanted.double(), moved).endswith(NOTE)


def graph(*body: str):
    lines = "\n  ".join((*body, f"store y[i] %{len(body) - 1}"))
    return parse_graph(f"""graph g {{
buffer x : f32[2] strides [1] on cpu
buffer y : f32[2] strides [1] on cpu
input x
comp only [i:2] {{
  {lines}
}}
output view(y, [2], [1], 0)
}}""")


DOUBLED = graph("%0 = load x[i] : f32", "%1 = add %0 %0 : f32")
LOST = graph("%0 = load x[i] : f32", "%1 = sub %0 %0 : f32")  # NaN of infinities
ZERO = graph("%0 = const 0.0 : f32")


def test_what_has_no_numbers_hides_no_pass_that_is_wrong():
    def found(*stages) -> list[str]:
        interpreter = Interpreter()
        interpreter._compare("forward", DOUBLED, stages, [t(INF, -INF)])
        return interpreter.found

    scores = f"forward, pass 'scores', result 0: 2 of 2 elements differ{NOTE}"
    assert found(("scores", LOST), ("plan", LOST)) == [scores]
    wrong = "forward, pass 'plan', result 0: 2 of 2 elements differ"
    assert found(("scores", LOST), ("plan", ZERO)) == [scores, wrong]
    later = scores.replace("scores", "taps apart")
    assert found(("scores", DOUBLED), ("taps apart", LOST)) == [later]
    assert found(("scores", LOST), ("plan", DOUBLED), ("taps apart", LOST)) == [scores, later]


# -- campaigns --


@pytest.fixture
def drawn(monkeypatch):
    """Every seed of movement is the program that is put in."""
    put = SimpleNamespace(case=UNFOLD)
    monkeypatch.setitem(KINDS, "movement", lambda seed: put.case)
    return put


def test_strides_of_unfold_are_no_wrong_result(drawn, tmp_path):
    """A release of torch that predicts them has nothing to tell."""
    (finished,) = run(Campaign(tmp_path, kinds=("movement",)), range(1), 0).finished
    assert not finished.wrong and finished.limits == (STRIDES,) * bool(finished.found)
    assert not (tmp_path / "failures").exists()
    assert Log(Campaign(tmp_path).log).finished == [finished]


def test_a_wrong_value_is_wrong_whatever_its_strides(drawn, tmp_path, monkeypatch):
    def forgets(plan, context):
        zero = [replace(n, stores=tuple(replace(s, value=0) for s in n.stores))
                if hasattr(n, "stores") else n for n in plan.graph.nodes]  # fmt: skip
        return replace(plan, graph=replace(plan.graph, nodes=tuple(zero)))

    name = "contiguous rows"
    monkeypatch.setitem(PASSES, name, replace(PASSES[name], run=forgets))
    assert any("elements differ" in text for text in interpreted(UNFOLD))
    finished = run_seed(Campaign(tmp_path, kinds=("movement",)), 0)
    assert finished.wrong and not finished.limits and finished.file


def test_what_is_wrong_is_not_made_small_to_a_limit(drawn, tmp_path, monkeypatch):
    drawn.case = TURNED
    wrong = "v1: relative L2 error 1.00e+00 above 1.00e-06"

    def check(case, device) -> list[str]:
        strided = [STRIDED] if "v0" in case.outputs and TURNED.lines[0] in case.lines else []
        return [*strided, *([wrong] if "v1" in case.outputs else [])]

    monkeypatch.setitem(CHECKS, "interpreted", check)
    finished = run_seed(Campaign(tmp_path, kinds=("movement",)), 0)
    assert finished.wrong and wrong in finished.found


def test_limits_do_not_make_the_exit_status_1(monkeypatch, tmp_path, capsys):
    right, limit = Finished(0, "movement"), Finished(1, "layer", (REORDERED,), limits=(INFINITE,))
    wrong = Finished(2, "movement", ("v0: 1 of 3 elements differ",), "v0.py")
    for found, status in ([right, limit], 0), ([right, limit, wrong], 1), ([right], 0):
        log = SimpleNamespace(finished=found)
        monkeypatch.setattr(command, "run", lambda *more, log=log: log)
        assert command.main(["--folder", str(tmp_path)]) == status
    lines = command.summary(SimpleNamespace(finished=[right, limit, wrong])).splitlines()
    assert lines[0] == "3 programs of 3 seeds, 1 wrong, 1 at listed limits"
    assert [line.split() for line in lines[1:3]] == [
        ["movement", "2", "programs", "1", "wrong", "0", "limit"],
        ["layer", "1", "programs", "0", "wrong", "1", "limit"],
    ]
    assert lines[3] == f"  limit: {INFINITE}: 1"
    command._tell(limit)
    assert f"limit: {INFINITE}" in capsys.readouterr().out


def test_logs_of_before_are_read(tmp_path):
    fields = {"seed": 1, "kind": "layer", "found": [REORDERED], "file": "", "seconds": 1.0}
    (tmp_path / "log.jsonl").write_text(json.dumps(fields) + "\n")
    (finished,) = Log(tmp_path / "log.jsonl").finished
    assert finished.wrong and finished.limits == ()
