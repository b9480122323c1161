"""torchweld.export and torchweld.load: what an archive gives is what the fused model gives, where
there is no compiler; what does not fit is refused."""

from __future__ import annotations

import copy
import json
import os
import pickle
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from typer.testing import CliRunner

import torchweld
from archive_models import cases, exported, run_elsewhere
from torchweld.cli.main import app
from torchweld.core.errors import EnvironmentProblem, UsageError
from torchweld.deploy.archive import Reader


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Every model as an archive, with calls and the fused model's results."""
    return exported(cases(), tmp_path_factory.mktemp("archives"))


@pytest.fixture(scope="module")
def ran(folder, tmp_path_factory):
    return run_elsewhere(folder, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", sorted(cases()))
def test_same_numbers_where_nothing_can_be_compiled(ran, name):
    assert ran[name] == "same"


@pytest.mark.parametrize("name", ["batch", "tokens", "divided"])
def test_every_size_is_as_exact_as_eager(folder, name):
    case, loaded = cases()[name], torchweld.load(folder / f"{name}.tw")
    with torch.no_grad():
        case.model.load_state_dict(loaded.state_dict())
        for buffer, kept in zip(case.model.buffers(), loaded.buffers()):
            buffer.copy_(kept)
        wide = copy.deepcopy(case.model).double()
        for args in (*case.others, *case.small):
            wanted = wide(*(a.double() if a.is_floating_point() else a for a in args))
            torch.testing.assert_close(loaded(*args).double(), wanted, rtol=1e-5, atol=1e-5)


# -- what a call must be


def test_a_call_may_name_its_arguments_and_leave_defaults_out(folder):
    model = torchweld.load(folder / "structures.tw")
    ((pair,), kwargs), bias = cases()["structures"].inputs, {"bias": torch.zeros(16)}
    wanted = model(pair, **kwargs)["z"]
    assert torch.equal(model(pair=pair, times=2, flags=None, **kwargs)["z"], wanted)
    assert not torch.equal(model(pair, extra=bias)["z"], wanted)


@pytest.mark.parametrize("args, kwargs, said", [
    ((torch.ones(7, 64), 3), {}, "takes 1 arguments, not 2"),
    ((), {}, "needs the argument input"),
    ((torch.ones(7, 64),), {"input": torch.ones(7, 64)}, "input twice"),
    ((torch.ones(7, 64),), {"mask": None}, "without the argument mask"),
    ((torch.ones(7, 63),), {}, r"sizes \[input.shape\[0\], 64\], not \[7, 63\]"),
    ((torch.ones(7, 64, dtype=torch.float64),), {}, "takes float32 with 2 dimensions on cpu"),
    ((torch.ones(64),), {}, "with 2 dimensions on cpu as input, not float32 with 1"),
    ((torch.ones(7, 64, device="meta"),), {}, "on cpu as input, not float32 .* on meta"),
    (([torch.ones(7, 64)],), {}, "nested otherwise"),
    ((torch.ones(7, 64, requires_grad=True),), {}, "requires a gradient"),
])  # fmt: skip
def test_a_call_that_does_not_fit_says_why(folder, args, kwargs, said):
    with pytest.raises(UsageError, match=said):
        torchweld.load(folder / "batch.tw")(*args, **kwargs)


def test_other_constants_are_refused(folder):
    model, ((pair,), kwargs) = torchweld.load(folder / "structures.tw"), cases()[
        "structures"].inputs
    for other in ({"times": 3}, {"times": 2.0}, {"flags": False}):
        with pytest.raises(UsageError, match="exported"):
            model(pair, **kwargs, **other)


def test_what_the_model_asks_of_sizes_is_asked_again(folder):
    model = torchweld.load(folder / "divided.tw")
    with pytest.raises(UsageError, match=r"x\.shape\[1\] = 7"):
        model(torch.ones(3, 7))


class _AtOne(torch.nn.Module):
    """Differs for one row, in the way that `how` says."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        return self.how(x)


def _asked_late(x):
    y = x.t().reshape(-1)  # torch's own code asks first
    return y * 2 if x.shape[0] == 1 else y * 3


@pytest.mark.parametrize("how", [
    lambda x: (x * 2).squeeze(), lambda x: (x * 2).squeeze(0), lambda x: (x * 2).squeeze_(0, 1),
    lambda x: x * 2 if x.t().is_contiguous() else x * 3, _asked_late,
])  # fmt: skip
def test_one_row_is_refused_where_the_model_differs_for_it(tmp_path, how):
    model, sizes = _AtOne(how).eval(), {"x": {0: "n"}}
    torchweld.export(model, torch.randn(3, 4), tmp_path / "m.tw", dynamic=sizes)
    loaded, x = torchweld.load(tmp_path / "m.tw"), torch.randn(5, 4)
    torch.testing.assert_close(loaded(x), model(x))
    with pytest.raises(UsageError, match=r"x\.shape\[0\] != 1"):
        loaded(x[:1].clone())


def _heads(x):
    q, k, v = x.view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
    y = torch.nn.functional.scaled_dot_product_attention(q.contiguous(), k, v)
    return y.transpose(1, 2).contiguous().flatten(2)


def test_questions_of_torch_alone_do_not_forbid_one_row(tmp_path):
    model, sizes = _AtOne(_heads).eval(), {"x": {0: "n", 1: "length"}}
    torchweld.export(model, torch.randn(3, 5, 24), tmp_path / "m.tw", dynamic=sizes)
    loaded = torchweld.load(tmp_path / "m.tw")
    for shape in ((2, 4), (1, 4), (4, 1), (1, 1)):
        x = torch.randn(*shape, 24)
        torch.testing.assert_close(loaded(x), model(x))


def test_a_limit_of_a_size_holds(tmp_path):
    case, few = cases()["mlp"], torch.export.Dim("few", min=2, max=9)
    torchweld.export(case.model, case.inputs, tmp_path / "few.tw", dynamic={"input": {0: few}})
    model = torchweld.load(tmp_path / "few.tw")
    assert model(torch.ones(9, 64)).shape == (9, 5)
    with pytest.raises(UsageError, match=r"input.shape\[0\] of 2 to 9, not 10"):
        model(torch.ones(10, 64))


def test_strides_of_other_calls_are_copied(folder):
    model, x = torchweld.load(folder / "mlp.tw"), torch.randn(64, 7).t()
    assert torch.equal(model(x), model(x.contiguous()))


def test_not_under_autocast(folder):
    model = torchweld.load(folder / "mlp.tw")
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(UsageError, match="autocast"):
        model(torch.ones(7, 64))


def test_a_tensor_that_lies_in_memory_with_the_other_sign(tmp_path):
    model, z = _AtOne(lambda x: x * 2 + 1).eval(), torch.randn(3, 4, dtype=torch.complex64)
    torchweld.export(model, z.imag, tmp_path / "m.tw")
    x = z.conj().imag
    assert x.is_neg() and x.stride() == z.imag.stride()
    assert torch.equal(torchweld.load(tmp_path / "m.tw")(x), model(x))
    torchweld.export(model, x, tmp_path / "n.tw")
    assert torch.equal(torchweld.load(tmp_path / "n.tw")(z.imag), model(z.imag))


def test_no_derivative_is_lost_in_silence(folder):
    model, x = torchweld.load(folder / "mlp.tw"), torch.randn(7, 64)
    with forward_ad.dual_level(), pytest.raises(UsageError, match="makes no derivatives"):
        model(forward_ad.make_dual(x, torch.ones_like(x)))


class _Over(torch.nn.Module):
    def forward(self, x, divisor=0.0):
        return 1 / torch.full_like(x, divisor)


def test_zero_has_a_sign(tmp_path):
    model, x = _Over().eval(), torch.ones(2)
    torchweld.export(model, (x, -0.0), tmp_path / "m.tw")
    loaded = torchweld.load(tmp_path / "m.tw")
    assert torch.equal(loaded(x, -0.0), model(x, -0.0))
    for args in ((x, 0.0), (x,)):
        with pytest.raises(UsageError, match="exported for"):
            loaded(*args)


# -- a module


def test_it_is_a_module_with_the_names_of_the_model(folder):
    model = torchweld.load(folder / "tied.tw")
    assert model.head.weight is model.embed.weight
    assert set(model.state_dict()) == set(cases()["tied"].model.state_dict())
    assert model.eval() is model and not model.training
    with pytest.raises(UsageError, match="inference"):
        model.train()
    with pytest.raises(UsageError, match="copied or pickled"):
        pickle.dumps(model)


def test_new_weights_may_be_copied_in(folder):
    model, other = torchweld.load(folder / "packed.tw"), cases()["packed"].model
    x = torch.randn(7, 64)
    model(x)  # packs
    torch.nn.init.ones_(other[0].bias)
    model.load_state_dict(other.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(model(x), other(x), rtol=1e-4, atol=1e-4)


def test_parameters_with_equal_values_stay_two(tmp_path):
    x = torch.randn(7, 64)
    twin = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(2)]).eval()
    torch.nn.init.zeros_(twin[0].bias)
    torch.nn.init.zeros_(twin[1].bias)
    torchweld.export(twin, x, tmp_path / "twin.tw")
    model = torchweld.load(tmp_path / "twin.tw")
    model.get_parameter("0.bias").data.add_(1)
    assert not model.get_parameter("1.bias").any()


# -- weights in a file beside


def test_weights_in_a_file_beside(folder, tmp_path):
    case = cases()["tied"]
    made = torchweld.export(case.model, case.inputs, tmp_path / "m.tw", weights="reference")
    inside = torchweld.export(case.model, case.inputs, tmp_path / "inside.tw")
    wanted = torchweld.load(tmp_path / "inside.tw")(*case.inputs)
    assert made.bytes < inside.bytes
    model = torchweld.load(tmp_path / "m.tw")
    assert torch.equal(model(*case.inputs), wanted)
    assert model.head.weight is model.embed.weight
    (tmp_path / "m.tw.weights").rename(tmp_path / "moved")
    with pytest.raises(UsageError, match="cannot be read"):
        torchweld.load(tmp_path / "m.tw")
    moved = torchweld.load(tmp_path / "m.tw", weights=tmp_path / "moved")
    assert torch.equal(moved(*case.inputs), wanted)
    flip(tmp_path / "moved")
    with pytest.raises(UsageError, match="hash differs"):
        torchweld.load(tmp_path / "m.tw", weights=tmp_path / "moved")


def test_weights_of_a_file_that_is_there(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    case, file = cases()["images"], tmp_path / "model.safetensors"
    state = {k: v.contiguous() for k, v in case.model.state_dict().items()}
    safetensors.save_file(state, file)
    torchweld.export(case.model, case.inputs, tmp_path / "m.tw", weights=file)
    with torch.no_grad():
        wanted = torchweld.fuse(case.model, case.inputs)(*case.inputs)
    assert torch.equal(torchweld.load(tmp_path / "m.tw")(*case.inputs), wanted)
    case.model.conv.bias.data[0] += 1
    with pytest.raises(UsageError, match=r"another conv\.bias"):
        torchweld.export(case.model, case.inputs, tmp_path / "n.tw", weights=file)
    assert not (tmp_path / "n.tw").exists()


# -- what is not loaded


def flip(path: Path, at: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)


def copied(folder, tmp_path) -> Path:
    path = tmp_path / "copy.tw"
    path.write_bytes((folder / "mlp.tw").read_bytes())
    return path


def rewritten(folder, tmp_path, change) -> Path:
    """A copy whose manifest is as `change` leaves it."""
    path = tmp_path / "changed.tw"
    with zipfile.ZipFile(folder / "mlp.tw") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "manifest.json":
                manifest = json.loads(content)
                change(manifest)
                content = json.dumps(manifest)
            new.writestr(name, content)
    return path


def test_a_flipped_bit_anywhere_is_told(folder, tmp_path):
    whole = (folder / "mlp.tw").stat().st_size
    for place in range(40, whole, whole // 12):
        path = copied(folder, tmp_path)
        pinned = torchweld.load(path).sha256
        flip(path, place)
        try:
            torchweld.load(path, sha256=pinned)
        except (UsageError, EnvironmentProblem):
            continue
        with zipfile.ZipFile(path) as archive:  # a byte that means nothing: a date, a name's copy
            assert archive.testzip() is None


def test_parts_are_read_one_at_a_time(folder, monkeypatch):
    """Loading reads in two threads, and zipfile of Python 3.12 and 3.13 then gives other bytes."""
    with Reader(folder / "mlp.tw") as reader:
        open_part, alone = reader._zip.open, []

        def watched(name):
            alone.append(not reader._turn.acquire(blocking=False))
            return open_part(name)

        monkeypatch.setattr(reader._zip, "open", watched)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(reader.read, 10 * list(reader.manifest.parts)))
    assert alone and all(alone)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_part_of_an_archive_is_refused(folder, tmp_path, share):
    path = copied(folder, tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(UsageError, match="no archive of a model"):
        torchweld.load(path)


def test_the_hash_of_the_manifest_may_be_demanded(folder, tmp_path):
    path = copied(folder, tmp_path)
    pinned = torchweld.load(path).sha256
    assert torchweld.load(path, sha256=pinned).sha256 == pinned
    with pytest.raises(UsageError, match="has the hash"):
        torchweld.load(path, sha256="0" * 64)
    path = rewritten(folder, tmp_path, lambda manifest: manifest.update(model="Other"))
    with pytest.raises(UsageError, match="has the hash"):
        torchweld.load(path, sha256=pinned)


def test_what_others_may_write_is_not_run(folder, tmp_path, monkeypatch):
    path = copied(folder, tmp_path)
    pinned = torchweld.load(path).sha256
    path.chmod(0o666)
    with pytest.raises(UsageError, match="other users may write"):
        torchweld.load(path)
    assert torchweld.load(path, sha256=pinned).sha256 == pinned
    path.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UsageError, match="belongs to user"):
        torchweld.load(path)


@pytest.mark.parametrize("change, said", [
    (lambda needs: needs.update(torch="2.0.0"), "needs torch 2.0.0, this is"),
    (lambda needs: needs.update(torchweld="9.9"), "needs torchweld 9.9"),
    (lambda needs: needs.update(code="0" * 40), "torchweld's files"),
    (lambda needs: needs.update(system="Linux riscv64"), "a machine with Linux riscv64"),
    (lambda needs: needs["features"].append("avx9000"), "processor lacks: avx9000"),
    (lambda needs: needs.update(gpu="99.9"), "GPU"),
])  # fmt: skip
def test_another_machine_is_told_what_it_lacks(folder, tmp_path, change, said):
    path = rewritten(folder, tmp_path, lambda manifest: change(manifest["needs"]))
    with pytest.raises(EnvironmentProblem, match=said):
        torchweld.load(path)


def test_another_python_loses_only_the_quick_way(folder, tmp_path):
    path = rewritten(folder, tmp_path, lambda m: m["needs"].update(python="cpython-27"))
    x, model = torch.randn(7, 64), torchweld.load(path)
    assert model._program.loaded.native is None
    assert torch.equal(model(x), torchweld.load(folder / "mlp.tw")(x))


def _rename(manifest):
    parts = manifest["parts"]
    name = next(n for n in parts if n.startswith("kernels"))
    parts["../evil.so"] = parts.pop(name)


def _more(manifest):
    manifest["parts"]["kernels/abc.so"] = manifest["parts"]["plan.json"]


def _held(**fields):
    return lambda manifest: manifest["held"][0].update(fields)


@pytest.mark.parametrize("change", [
    _rename, _more, lambda m: m.update(format=99), lambda m: m.update(surprise=1),
    lambda m: m.clear(), lambda m: m.update(helpers=None), lambda m: m.update(plan="plan.so"),
    lambda m: m["order"].pop(), lambda m: m["order"].append(0), lambda m: m["order"].reverse(),
    lambda m: m["order"].__setitem__(0, 99), lambda m: m["order"].__setitem__(0, -1),
    _held(part="weights/none.bin"), _held(dtype="float16"), _held(dtype="int32"),
    _held(device="meta"),
])  # fmt: skip
def test_other_manifests_are_refused(folder, tmp_path, change):
    with pytest.raises(UsageError):
        torchweld.load(rewritten(folder, tmp_path, change))


def _flagged(content: bytearray, mark: bytes, at: int, value: int) -> None:
    """Sets a byte of each header of a zip that begins with `mark`."""
    start = content.find(mark)
    while start >= 0:
        content[start + at] = value
        start = content.find(mark, start + 4)


@pytest.mark.parametrize("at, value", [(8, 1), (8, 0x20), (10, 99), (6, 99)])
def test_parts_that_are_packed_are_refused(folder, tmp_path, at, value):
    path = copied(folder, tmp_path)
    content = bytearray(path.read_bytes())
    _flagged(content, b"PK\1\2", at, value)
    path.write_bytes(content)
    with pytest.raises(UsageError, match="no archive of a model"):
        torchweld.load(path)
    with zipfile.ZipFile(folder / "mlp.tw") as old, zipfile.ZipFile(path, "w", 8) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(UsageError, match="packed"):
        torchweld.load(path)


def test_an_export_to_a_link_replaces_the_link(folder, tmp_path):
    """Renaming works inside one folder for sure: what the link points to may be on another disk."""
    (tmp_path / "there").mkdir()
    link, case = tmp_path / "m.tw", cases()["mlp"]
    link.symlink_to(tmp_path / "there" / "old.tw")
    torchweld.export(case.model, case.inputs, link, weights="reference")
    assert not link.is_symlink() and not list((tmp_path / "there").iterdir())
    assert torchweld.load(link).manifest.weights.path == "m.tw.weights"


# -- what is not exported


class _Branches(torch.nn.Module):
    def forward(self, x):
        return x[x > 0].sum() if x.sum() > 0 else x


class _Shares(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("whole", torch.zeros(8))
        self.register_buffer("front", self.whole[:4])

    def forward(self, x):
        self.front.add_(1)
        return x + self.whole.sum()


class _Writes(torch.nn.Module):
    def forward(self, x):
        return x.add_(1)


@pytest.mark.parametrize("model, said", [
    (torch.nn.Linear(4, 4), "training mode"),
    (_Branches().eval(), "cannot be exported"),
    (_Writes().eval(), "writes to its inputs"),
    (_Shares().eval(), "share memory|cannot be exported"),
    (lambda x: x, "cannot export a function"),
])
def test_what_cannot_be_is_told(tmp_path, model, said):
    with pytest.raises(UsageError, match=said):
        torchweld.export(model, (torch.ones(3, 4),), tmp_path / "m.tw")
    assert not list(tmp_path.iterdir())


def test_sizes_that_vary_must_be_there(tmp_path):
    model, x = torch.nn.Linear(4, 4).eval(), torch.ones(1, 4)
    for dynamic, said in (({"y": {0: "n"}}, "no argument"), ({"input": {5: "n"}}, "no dimension"),
                          ({"input": {0: "n"}}, "two or more"), ("yes", "has no meaning")):
        with pytest.raises(UsageError, match=said):
            torchweld.export(model, (x,), tmp_path / "m.tw", dynamic=dynamic)
    with pytest.raises(UsageError, match=r"fixes input.shape\[1\] at 4"):
        torchweld.export(model, (torch.ones(3, 4),), tmp_path / "m.tw",
                         dynamic={"input": {1: "columns"}})


def test_every_size_that_the_model_leaves_free(tmp_path):
    case = cases()["mlp"]
    torchweld.export(case.model, case.inputs, tmp_path / "m.tw", dynamic=True)
    assert torchweld.load(tmp_path / "m.tw")(torch.ones(3, 64)).shape == (3, 5)


# -- further positions and names


class _Gathers(torch.nn.Module):
    def forward(self, x, /, *others, **named):
        return x + sum(others) - named["y"] * named["z"]


def test_arguments_that_forward_gathers(tmp_path):
    model, x = _Gathers().eval(), torch.randn(3, 4)
    args, kwargs = (x, x + 1, x + 2), {"y": x + 3, "z": x + 4}
    torchweld.export(model, (args, kwargs), tmp_path / "m.tw")
    loaded, turned = torchweld.load(tmp_path / "m.tw"), dict(reversed(kwargs.items()))
    assert torch.equal(loaded(*args, **turned), model(*args, **kwargs))
    with pytest.raises(UsageError, match="without the argument w"):
        loaded(*args, **kwargs, w=x)
    with pytest.raises(UsageError, match=r"with \*\*named"):
        torchweld.export(model, (args, kwargs), tmp_path / "n.tw", dynamic=True)


class _Adds(torch.nn.Module):
    def forward(self, x, *others):
        return x + sum(others)


def test_sizes_of_further_positions_may_vary(tmp_path):
    model, x, sizes = _Adds().eval(), torch.randn(3, 4), {0: "n"}
    torchweld.export(model, (x, x, x), tmp_path / "m.tw",
                     dynamic={"x": sizes, "others": [sizes, sizes]})
    loaded = torchweld.load(tmp_path / "m.tw")
    assert torch.equal(loaded(x[:2], x[1:], x[:2]), model(x[:2], x[1:], x[:2]))
    with pytest.raises(UsageError, match=r"takes others\[1\] of sizes"):
        loaded(x[:2], x[1:], x)


def test_a_result_class_must_be_known_where_it_is_loaded(tmp_path):
    outputs = pytest.importorskip("transformers.modeling_outputs")

    class Wrapped(torch.nn.Module):
        def forward(self, x):
            return outputs.BaseModelOutput(last_hidden_state=x.sin().exp())

    x = torch.randn(3, 4)
    torchweld.export(Wrapped().eval(), x, tmp_path / "m.tw")
    made = torchweld.load(tmp_path / "m.tw")(x)
    assert type(made) is outputs.BaseModelOutput and made.hidden_states is None
    with pytest.raises(AssertionError, match="BaseModelOutput"):
        run_elsewhere(tmp_path, tmp_path / "cache")


# -- the command line


def test_the_command_line(tmp_path):
    out, run = tmp_path / "m.tw", CliRunner()
    asked = ["export", "geglu-mlp", "--tiny", "--device", "cpu", "--out", str(out), "--dynamic"]
    done = run.invoke(app, [*asked, "x:0=batch"])
    assert done.exit_code == 0, done.output
    sha256 = done.output.split()[-1]
    done = run.invoke(app, ["run-archive", str(out), "--sha256", sha256])
    assert done.exit_code == 0 and "takes x: float32 [x.shape[0]," in done.output, done.output
    done = run.invoke(app, ["run-archive", str(out), "--sha256", "0" * 64])
    assert done.exit_code == 2 and "has the hash" in done.output
    done = run.invoke(app, [*asked, "batch"])
    assert done.exit_code == 2 and "argument:dimension=name" in done.output


class _Both(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 4))

    def forward(self, x, y):
        return x - y * self.weight


def test_example_inputs_may_be_one_tensor(tmp_path):
    """A call may give two."""
    model, x = _Both().eval(), torch.randn(3, 4)
    for example in ((x, x), (x, x.view(3, 4)), (model.weight.detach(), x)):
        torchweld.export(model, example, tmp_path / "m.tw")
        made = torchweld.load(tmp_path / "m.tw")(x, x + 1)
        torch.testing.assert_close(made, model(x, x + 1).detach(), rtol=0, atol=0)
