"""Random programs: fused equals eager within the budget. Deterministic: the same programs in every
run."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings

import torchweld
from own_cache import with_runtime
from torchweld.core.events import events
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
    cache = with_runtime(tmp_path / "cache")

    def fuse(function):
        torch.compiler.reset()  # each program is compiled once, and forgotten
        return torchweld.fuse(function, cache_dir=cache, dynamic=dynamic)

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


NAN, INF = float("nan"), float("inf")
FOUND = {  # what the fuzzer found, once mended: a program and its inputs
    "cat of nothing": (lambda x: torch.cat([x, x, x]), torch.empty(0)),
    "cat with nothing": (lambda x: torch.cat([x[:, :0], x, x[:, :0]], 1), torch.randn(2, 3)),
    "sign": (lambda x: (x.sign(), x.sgn()), torch.tensor([NAN, -0.0, 0.0, INF, -3.0] * 7)),
    "two argmax": (lambda x: (x.argmax(0), x.argmax(1)), torch.randn(2).expand(2, 2)),
    "index_add of one value": (
        lambda x, i: x.new_zeros(4).index_add(0, i % 4, x),
        torch.randn(1).expand(2), torch.tensor([1]).expand(2),
    ),
    "logsumexp of inf": (
        lambda x: (x.logsumexp(1), x.logsumexp(0)),
        torch.tensor([[1.0, INF, 0.0], [-INF, -INF, -INF], [INF, -INF, INF], [1.0, 2.0, 3.0]]),
    ),
    "no columns": (lambda x: ((-x.abs()).exp(), x.sum(0), x.mean(1)), torch.empty(2, 0)),
    "norm of one value": (
        lambda x: torch.nn.functional.layer_norm(x, (7,)), torch.full((5, 7), 1 / 3),
    ),
    "softmax over repeated values": (
        lambda x: ((-x.abs()).exp(), x.repeat_interleave(2, 0).softmax(0)), torch.randn(2),
    ),
    "reductions of scalars": (
        lambda x: (x.amax(0).amin(0), x.logsumexp(0).sum(0, keepdim=True)), torch.randn(31),
    ),
    "a smallest row in every row, beside the largest column of each": (
        lambda x: (x.amin(0, keepdim=True)[x.argmax(1) % 1], x.argmax(1)), torch.randn(9, 129),
    ),
    "16-bit values that are the same along a row": (
        lambda x: x.log_softmax(0), torch.randn(3).half().expand(3, 3),
    ),
    "a maximum that no column changes": (
        lambda x: (lambda y: y == y.amax(0, keepdim=True))(x.repeat_interleave(2, 1)),
        torch.randn(65, 2)[:, :1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", FOUND)
def test_what_the_fuzzer_found(name, dynamic):
    function, *inputs = FOUND[name]
    torch.compiler.reset()
    before = len(events())
    found = torchweld.fuse(function, dynamic=dynamic)(*inputs)
    torch.testing.assert_close(found, function(*inputs), atol=1e-6, rtol=1e-6, equal_nan=True)
    assert events()[before:] == ()


def test_gradients_of_nan():
    x = torch.full((33,), NAN, requires_grad=True)
    torch.nn.functional.elu(x).sum().backward()
    eager, x.grad = x.grad, None
    torchweld.fuse(lambda x: torch.nn.functional.elu(x))(x).sum().backward()
    assert eager[:32].isnan().all() and x.grad.isnan().all()
