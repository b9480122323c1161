"""path/to/file.py:function: what works, and one clear line for each thing wrong."""
from __future__ import annotations

import pickle

import pytest
import torch

from torchweld.core.errors import UsageError
from torchweld.zoo.targets import check_fits, load_target, regression_loss, tensors

GOOD = """
import torch
class Net(torch.nn.Linear):
    pass
def make():
    return Net(3, 4), torch.ones(2, 3)
def named():
    return Net(3, 4), {"input": torch.ones(2, 3)}
def with_loss():
    return Net(3, 4), (torch.ones(2, 3),), lambda out, x: out.sum() * 0 + x.sum()
def misfit():
    return Net(3, 4), torch.ones(2, 5)
def alone():
    return Net(3, 4)
def broken():
    raise ValueError("no weights here")
def bad_inputs():
    return Net(3, 4), 7
def no_tensor():
    class Null(torch.nn.Module):
        def forward(self, x):
            return None
    return Null(), torch.ones(1)
value = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    return path


def load(spec, dtype=None, train=False):
    return load_target(str(spec), dtype=dtype, device="cpu", train=train)


def test_positional_and_named_inputs(file):
    assert load(f"{file}:make").args[0].shape == (2, 3)
    assert load(f"{file}:named").kwargs["input"].shape == (2, 3)
    assert isinstance(load(f"{file}:make").example_inputs, tuple)
    assert isinstance(load(f"{file}:named").example_inputs, dict)


def test_dtype_applies_to_weights_and_floating_inputs(file):
    target = load(f"{file}:make", torch.float64)
    assert target.model.weight.dtype == target.args[0].dtype == torch.float64


def test_training_returns_the_given_loss_or_a_regression(file):
    mine, usual = load(f"{file}:with_loss", train=True), load(f"{file}:named", train=True)
    assert mine.model(*mine.args).item() == 6
    plain = load(f"{file}:named")
    torch.manual_seed(0)
    plain.model.load_state_dict(usual.model.model.state_dict())
    expected = regression_loss(plain.model(**plain.kwargs))
    assert torch.equal(usual.model(**usual.kwargs), expected)


def test_a_class_of_the_file_can_be_pickled(file):
    model = load(f"{file}:make").model
    assert torch.equal(pickle.loads(pickle.dumps(model)).weight, model.weight)


@pytest.mark.parametrize("name, said", [
    ("missing", "has no function missing"),
    ("value", "has no function value"),
    ("alone", r"returned a value of type Net: give a function that returns \(model,"),
    ("broken", "failed: ValueError: no weights here"),
    ("bad_inputs", "are a value of type int: give a tensor"),
])
def test_a_wrong_function_is_told(file, name, said):
    with pytest.raises(UsageError, match=said):
        load(f"{file}:{name}")


@pytest.mark.parametrize("name, said", [("misfit", "do not fit .*RuntimeError: mat1 and mat2"),
                                        ("no_tensor", "no tensor, but a value of type NoneType")])
def test_inputs_that_do_not_fit_are_told(file, name, said):
    with pytest.raises(UsageError, match=said):
        check_fits(load(f"{file}:{name}"))


@pytest.mark.parametrize("spec, said", [
    ("nowhere.py:make", "no Python file nowhere.py"),
    ("nowhere.py", "'nowhere.py' is not a target"),
    ("nowhere.py:", "is not a target"),
    (":make", "is not a target"),
])
def test_a_wrong_path_is_told(spec, said):
    with pytest.raises(UsageError, match=said):
        load(spec)


def test_a_file_that_cannot_be_imported_is_told(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("import torchh\n")
    with pytest.raises(UsageError, match="cannot be imported: ModuleNotFoundError"):
        load(f"{bad}:make")
    (tmp_path / "bad.txt").write_text(GOOD)
    with pytest.raises(UsageError, match="no Python file"):
        load(f"{tmp_path}/bad.txt:make")


def test_results_with_a_field_named_values_are_tuples():
    x = torch.randn(3, 4)
    found = tensors((x.max(1), {"a": x}))
    assert [t.dtype for t in found] == [torch.float32, torch.int64, torch.float32]
