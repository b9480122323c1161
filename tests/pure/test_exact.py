"""The error contract and `verify`, on models whose fused version is known to be right or wrong."""

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

from torchweld.exact.budget import Budget, compare, judge, measure, pool, resolution
from torchweld.exact.fuzz import exact_results_of
from torchweld.exact.programs import Input, Program
from torchweld.exact.trees import leaves, map_tensors, tensors
from torchweld.exact.verify import verify

X = torch.randn(40, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def judged(fused, eager=None, oracle=X, **budget):
    eager = X.float() if eager is None else eager
    return compare("x", fused, eager, oracle, Budget(**budget)).reason


def test_rounding_is_allowed_and_more_is_not():
    assert judged(X.float()) == ""
    assert judged(X.float() * (1 + 1e-7)) == ""
    assert "relative L2" in judged(X.float() * (1 + 3e-6))


def test_one_sample_is_not_held_to_a_ratio_and_many_are():
    one, eager = torch.tensor(1.0, dtype=torch.float64), torch.tensor(1 + 1e-3)
    assert judged(torch.tensor(1 + 5e-3), eager, one) == ""
    assert "relative L2" in judged(torch.tensor(1 + 1e-2), eager, one)


def _flipped(flips: int, generator: torch.Generator) -> torch.Tensor:
    """Small errors everywhere, and `flips` elements 1000 times further off."""
    noise = 1e-6 * torch.randn(X.shape, dtype=X.dtype, generator=generator)
    places = torch.randint(X.numel(), (flips,), generator=generator)
    noise.view(-1)[places] = 1e-3 * torch.randn(flips, dtype=X.dtype, generator=generator)
    return X + noise


def test_errors_of_few_elements_are_few_samples():
    """Gradients behind a relu: which values are rounded across zero differs in any two ways to sum.
    Without the count of samples, 11 of these 200 pairs break the contract."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.poisson(torch.full((200, 2), 16.0), generator).int().tolist()
    pairs = [[_flipped(n, generator).float() for n in numbers] for numbers in drawn]
    assert [judged(*pair) for pair in pairs] == [""] * len(pairs)
    assert "relative L2" in judged(_flipped(400, generator).float(), pairs[0][1])


def test_many_errors_are_not_excused_by_the_few_of_eager():
    generator = torch.Generator().manual_seed(0)
    eager = _flipped(5, generator).float()
    error = 1e-3 * torch.randn(X.shape, dtype=X.dtype, generator=generator)
    assert "relative L2" in judged((X + error).float(), eager)


def test_rounding_of_zero_is_held_to_its_size_alone():
    zero = torch.zeros_like(X)
    assert judged((1e-9 * X).float(), (-4e-10 * X).float(), zero + 1e-20) == ""
    assert "relative L2" in judged((1e-7 * X).float(), (-4e-10 * X).float(), zero + 1e-20)


def test_errors_are_pooled():
    good, bad = (
        measure("x", (X * f).float(), (X * (1 + 1e-3)).float(), X) for f in (1 + 1e-3, 1 + 1.9e-3)
    )
    pooled = judge(pool([good, bad, good]))
    assert pooled.ok and pooled.count == 3 * X.numel() and not judge(bad).ok
    assert pooled.fused_l2 == pytest.approx(math.sqrt((1 + 1.9**2 + 1) / 3) * 1e-3, rel=1e-3)
    wrong = measure("x", X.float()[:1], X.float(), X)
    assert judge(pool([good, wrong])).reason == wrong.reason


def test_one_bad_element_is_found():
    fused = X.float()
    fused[3, 4] += 1e-4
    assert "largest error" in judged(fused)


def test_the_budget_grows_with_the_error_of_eager():
    eager = (X * (1 + 1e-3)).float()
    assert judged((X * (1 - 1.4e-3)).float(), eager) == ""
    assert "relative L2" in judged((X * (1 + 1.7e-3)).float(), eager)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_special_values_must_be_where_eager_has_them(value):
    special = X.clone()
    special[5, 6] = value
    assert judged(special.float(), special.float(), special) == ""
    assert "(5, 6)" in judged(special.float())
    assert "(5, 6)" in judged(X.float(), special.float(), special)


def test_an_overflow_that_eager_has_and_float64_does_not_may_go():
    large = torch.full((3,), 6e4, dtype=torch.float64)
    overflowed = torch.full((3,), math.inf, dtype=torch.float16)
    assert judged(large.half(), overflowed, large) == ""


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_integers_are_bitwise(dtype):
    eager = torch.arange(6).to(dtype)
    fused = eager.clone()
    assert judged(fused, eager, eager) == ""
    fused[1] = 0
    assert "1 of 6" in judged(fused, eager, eager)


def test_integers_that_follow_from_rounded_numbers_are_told_beside_float64s():
    true = torch.arange(6)
    eager, fused = true.clone(), true.clone()
    eager[:3], fused[2:4] = 9, 8
    reason = judged(fused, eager, true)
    assert reason.endswith("(from float64's 2 do, and 3 of eager's)")
    assert "4 of 6" in reason


def test_data_movement_is_bitwise():
    eager = torch.tensor([1.0, math.nan])
    assert judged(eager.clone(), eager, eager, bitwise=True) == ""
    assert judged(eager + 1e-7, eager, eager, bitwise=True) != ""


@pytest.mark.parametrize("fused", [X.float()[:3], X.bfloat16(), X])
def test_shape_and_dtype_count(fused):
    assert "instead of" in judged(fused)


def test_empty_and_scalar_tensors():
    empty = torch.empty(0, 3)
    assert judged(empty, empty, empty) == ""
    one = torch.tensor(2.0)
    assert judged(one, one, one) == ""


def test_resolution_grows_with_the_sum():
    assert resolution(torch.float32, 10_000) > 10 * resolution(torch.float32)
    assert resolution(torch.bfloat16) > 1000 * resolution(torch.float32)


def test_trees():
    nested = {"a": [torch.ones(1), 3], "b": (torch.zeros(2), {"c": torch.ones(3)})}
    assert list(tensors(nested)) == ["a[0]", "b[0]", "b[1].c"]
    assert dict(leaves(nested))["a[1]"] == 3
    assert tensors(map_tensors(torch.neg, nested))["a[0]"].item() == -1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x, scale=1.0):
        return {"y": self.norm(torch.relu(self.linear(x)) * scale), "index": x.argmax(1)}


class Wrong(Model):
    def forward(self, x, scale=1.0):
        out = super().forward(x, scale)
        out["y"] = out["y"] * 1.001
        return out


def pair(kind):
    model = Model()
    other = kind()
    other.load_state_dict(model.state_dict())
    return model, other


@pytest.mark.parametrize("train", [False, True])
def test_verify_accepts_the_model_itself_and_leaves_it_as_it_was(train):
    model, same = pair(Model)
    before = copy.deepcopy(model.state_dict())
    report = verify(model, same, torch.randn(16, 8), train=train)
    assert report.ok and report.oracle == "float64" and "within" in str(report)
    names = {e.name for e in report.errors}
    assert {"y", "index", "buffer norm.running_mean"} <= names
    assert ("gradient of linear.weight" in names) == train
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_verify_finds_a_wrong_result():
    model, wrong = pair(Wrong)
    report = verify(model, wrong, {"x": torch.randn(16, 8), "scale": 0.5})
    assert not report.ok and report.worst.name == "y" and "OUTSIDE" in str(report)


def test_verify_finds_a_wrong_gradient():
    class Detached(Model):
        def forward(self, x, scale=1.0):
            out = super().forward(x, scale)
            out["y"] = out["y"].detach() * 0.5 + out["y"] * 0.5
            return out

    model, wrong = pair(Detached)
    report = verify(model, wrong, torch.randn(16, 8), train=True)
    assert "gradient" in report.worst.name and not report.ok


class Counts(nn.Module):
    """Adds to a buffer of bfloat16, as a running mean does."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self.step = step
        self.register_buffer("mean", torch.ones(3, dtype=torch.bfloat16))

    def forward(self, x):
        self.mean += self.step
        return x + 1


@pytest.mark.parametrize("steps", [(0.004, 0.0039), (0.0039, 0.004)])
def test_a_buffer_may_stay_as_it_was_if_that_is_within_its_rounding(steps):
    assert len({(torch.ones((), dtype=torch.bfloat16) + s).item() for s in steps}) == 2
    model, other = map(Counts, steps)
    report = verify(model, other, torch.randn(4), seeds=(0,))
    assert report.ok and any(error.name == "buffer mean" for error in report.errors)


@pytest.mark.parametrize("steps", [(0.0, 0.5), (0.5, 0.0)])
def test_verify_finds_a_buffer_that_one_alone_changes(steps):
    model, other = map(Counts, steps)
    report = verify(model, other, torch.randn(4), seeds=(0,))
    assert [error.name for error in report.errors if not error.ok] == ["buffer mean"]


class Residue(nn.Module):
    """What the epsilon of a norm takes from one: all of it, where eager has rounded."""

    def forward(self, x):
        return nn.functional.rms_norm(x, (1,)) - x.sign()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_norm_has_the_epsilon_of_eager_in_float64_too(dtype):
    x = torch.full((5, 1), 0.01, dtype=dtype)
    report = verify(Residue(), Residue(), (x,), seeds=(0,))
    assert report.oracle == "float64" and report.errors[0].eager_l2 < 1e-3


def test_a_program_may_keep_what_eager_rounds_away():
    """Of 16 bits, the residue is zero in eager, and not where nothing is rounded between."""
    given = Input((64, 1), torch.bfloat16)
    line = "y = F.rms_norm(x0, x0.shape[-1:]).to(torch.float32) + 1"
    program = Program((given,), (line,), ("y",))

    def fused(x0):
        return (nn.functional.rms_norm(x0.float(), (1,)) + 1,)

    found = exact_results_of(program, [given.make()], False, "cpu")["y"]
    assert compare("y", fused(given.make())[0], fused(given.make())[0], found).ok
    assert (found[found < 0.5] > 1e-8).any()


def test_what_follows_a_cast_to_16_bits_may_be_wider_than_in_eager():
    def model(x, wide=torch.bfloat16):
        y = 1.1 * x.to(torch.bfloat16).to(wide)
        return (y * y).float()

    report = verify(model, partial(model, wide=torch.float32), torch.randn(300))
    assert report.ok and report.worst.eager_l2 > 1e-3 > 1e-6 > report.worst.fused_l2


def test_a_cast_to_16_bits_rounds_in_float64_too():
    def model(x):
        return x.bfloat16().float() + 1

    assert verify(model, model, torch.randn(300)).worst.eager_l2 < 1e-6
    assert not verify(model, lambda x: x + 1, torch.randn(300)).ok


def test_verify_of_a_buffer_that_is_expanded():
    model = nn.Linear(3, 3)
    model.register_buffer("rows", torch.arange(3.0)[:, None].expand(3, 3))
    assert verify(model, model, torch.randn(2, 3)).ok


def test_verify_without_float64():
    def picky(x):
        if x.dtype == torch.float64:
            raise RuntimeError("only float32 here")
        return x.bfloat16().exp()

    report = verify(picky, picky, (torch.randn(5),), seeds=(0,))
    assert report.oracle == "float32" and "only float32 here" in report.notes[0]


class Timed(nn.Module):
    """Names float32 itself, as diffusion models do; its weights are float64 in the oracle."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, step):
        frequencies = torch.exp(-torch.arange(4, dtype=torch.float32) / 3)
        angles = step[:, None].float() * frequencies.to(torch.float32)
        return self.linear(torch.cat((angles.sin(), angles.cos()), -1))


@pytest.mark.parametrize("train", [False, True])
def test_a_model_that_names_float32_is_measured_in_float64(train):
    model = Timed()
    report = verify(model, copy.deepcopy(model), torch.tensor([3, 700, 41]), train=train)
    assert report.ok and report.oracle == "float64" and not report.notes
    assert 1e-9 < report.errors[0].eager_l2 < 1e-4
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("train", [False, True])
def test_verify_judges_models_with_dropout(train):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    other = copy.deepcopy(model)
    report = verify(model, other, torch.randn(2, 4), seeds=(0,), train=train)
    assert "dropout is off in this comparison: 1" in str(report) and report.ok
    assert model[1].p == 0.5 and model[1].training
    assert not verify(model.eval(), model, torch.randn(2, 4), seeds=(0,)).notes


def test_a_module_named_after_its_dropout_has_no_chance_of_its_own():
    class DropoutNorm(nn.Sequential):
        pass

    model = DropoutNorm(nn.Dropout(0.5), nn.LayerNorm(4)).train()
    report = verify(model, model, torch.randn(3, 4))
    assert "dropout is off in this comparison: 0" in str(report) and report.ok
    assert model[0].p == 0.5


def test_an_oracle_that_is_nan_where_eager_is_not_judges_nothing():
    def model(x):
        return x * 2 + (torch.nan if x.dtype == torch.float64 else 0.0)

    report = verify(model, lambda x: x * 2 + 1, torch.randn(9), seeds=(0,))
    assert report.oracle == "float32" and not report.ok
    assert any("NaN where eager has none" in note for note in report.notes)
    assert verify(model, lambda x: x + x, torch.randn(9), seeds=(0,)).ok


QUARTERS = 1 + torch.arange(100) / 4


def _turns(x, error=0.0):
    """Sines of millions: errors of 0.05 or so, but where x is a quarter, for the product is exact
    there."""
    return (x * 3e5).sin() + error


_turns_otherwise, _wrong_turns = partial(_turns, error=0.05), partial(_turns, error=0.5)


class Table(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.table = function, nn.Parameter(QUARTERS.clone())

    def forward(self, ids):
        return self.function(self.table[ids])


def test_errors_that_eager_has_next_to_the_inputs_are_allowed():
    assert verify(_turns, _turns_otherwise, QUARTERS, seeds=(0,)).ok
    assert not verify(_turns, _wrong_turns, QUARTERS, seeds=(0,)).ok


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_errors_that_eager_has_next_to_the_weights_are_allowed(seeds):
    """Ids have no neighbours."""
    right, other, wrong = map(Table, (_turns, _turns_otherwise, _wrong_turns))
    ids = torch.arange(100)
    assert verify(right, other, ids, seeds=seeds).ok
    assert not verify(right, wrong, ids, seeds=seeds).ok
    assert all(torch.equal(model.table, QUARTERS) for model in (right, other, wrong))


def test_three_seeds_are_three_samples_where_inputs_are_ids():
    (error,) = verify(Table(_turns), Table(_turns), torch.arange(100), seeds=(0, 1, 2)).errors
    assert error.count == 300 and error.eager_l2 > 1e-4


def test_an_absolute_error_may_be_allowed_where_eager_is_zero():
    zero, near = torch.zeros(8), torch.full((8,), 1e-7)
    assert not compare("x", near, zero, zero.double()).ok
    assert compare("x", near, zero, zero.double(), Budget(absolute=2e-7)).ok
    assert not compare("x", 3 * near, zero, zero.double(), Budget(absolute=2e-7)).ok
