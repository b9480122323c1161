"""Random programs: fused equals eager within the budget. Deterministic: the same programs in every
run."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings

import torchweld
from torchweld.exact.budget import Budget
from torchweld.exact.fuzz import differences, programs
from torchweld.exact.programs import Input, Program
from torchweld.exact.shrink import reproducer, write_reproducer

QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


@pytest.mark.parametrize(
    "train, dynamic, count",
    [(False, None, 40), (True, None, 15), (False, True, 15)],
    ids=["inference", "training", "dynamic"],
)
def test_random_programs(tmp_path, train, dynamic, count):
    def fuse(function):
        torch.compiler.reset()  # each program is compiled once, and forgotten
        return torchweld.fuse(function, cache_dir=tmp_path / "cache", tune=False, dynamic=dynamic)

    @settings(max_examples=count, derandomize=True, deadline=None, suppress_health_check=QUIET)
    @given(programs())
    def fused_equals_eager(program):
        found = differences(program, fuse, train=train)
        assert not found, f"{found}\n{write_reproducer(program, found, tmp_path)}\n{program.source}"

    fused_equals_eager()


def test_the_fuzzer_accepts_eager_itself():
    @settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=QUIET)
    @given(programs())
    def eager_equals_eager(program):
        assert differences(program, lambda function: function) == []

    eager_equals_eager()


SIMPLE = Program(
    (Input((3, 4), torch.float32),), ("v0 = x0.transpose(0, 1)",), ("v0",), frozenset(("v0",))
)


def test_the_fuzzer_sees_wrong_values_strides_and_errors():
    def failing(x):
        raise RuntimeError("no such kernel")

    assert "elements differ" in differences(SIMPLE, lambda f: lambda x: (f(x)[0] + 1e-6,))[0]
    assert "strides" in differences(SIMPLE, lambda f: lambda x: (f(x)[0].contiguous(),))[0]
    assert "no such kernel" in differences(SIMPLE, lambda f: failing)[0]
    rounded = Program(SIMPLE.inputs, ("v0 = x0 * 3",), ("v0",))
    assert differences(rounded, lambda f: lambda x: (f(x)[0] * (1 + 1e-7),)) == []
    assert differences(rounded, lambda f: lambda x: (f(x)[0] * (1 + 1e-4),), Budget())


def test_a_reproducer_runs_on_its_own(capsys):
    text = reproducer(SIMPLE, ["v0: 1 of 12 elements differ"])
    assert text.startswith("# v0: 1 of 12 elements differ\n")
    exec(text.replace("torchweld.fuse(program)", "program"), {})
    assert "v0 fused torch.float32 (4, 3) (1, 4)" in capsys.readouterr().out
