"""`torchweld export` and `torchweld run-archive`: a compiled model as a file, and whether it
runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
import typer

from torchweld.cli.asked import check_machine, check_output, chosen_device
from torchweld.core.errors import UsageError
from torchweld.core.units import bytes_text
from torchweld.deploy.contract import example
from torchweld.deploy.export import export
from torchweld.deploy.load import LoadedModel, load
from torchweld.exact.trees import tensors
from torchweld.zoo.chosen import chosen_target


@dataclass(frozen=True)
class Request:
    """The arguments of `export`."""

    target: str
    out: Path
    dynamic: list[str]
    weights: str
    device: str | None
    dtype: str | None
    seed: int
    tiny: bool


def run_export(request: Request) -> None:
    """Errors: UsageError or EnvironmentProblem for whatever the user can mend."""
    check_output(request.out, "--out")
    device = chosen_device(request.device)
    check_machine(device)
    target = chosen_target(request.target, device, request.dtype, False, request.seed, request.tiny)
    dynamic = _dynamic(request.dynamic)
    made = export(target.model.eval(), (target.args, target.kwargs), request.out, dynamic=dynamic,
                  weights=request.weights)
    typer.echo(f"{made.path}: {bytes_text(made.bytes)}, {made.kernels} kernels, {made.calls} "
               "library calls")
    if made.interpreted:
        typer.echo(f"torchweld: {made.interpreted} kernels did not compile, and run as ATen "
                   "operations", err=True)
    typer.echo(f"sha256 {made.sha256}")


def run_archive(path: Path, sha256: str | None, weights: Path | None) -> None:
    """Loads it, calls it with inputs made up for it, and prints what it is. Errors: UsageError or
    EnvironmentProblem."""
    start = time.perf_counter()
    model = load(path, sha256=sha256, weights=weights)
    loaded_s = time.perf_counter() - start
    _tell(model)
    args, kwargs = example(model.manifest.call)
    results = tensors(model(*args, **kwargs))
    for name, tensor in results.items():
        typer.echo(f"  gives {name}: {_layout(tensor)}")
    start = time.perf_counter()
    model(*args, **kwargs)
    if any(t.is_cuda for t in results.values()):
        torch.cuda.synchronize()
    called_ms = 1e3 * (time.perf_counter() - start)
    typer.echo(f"loaded in {loaded_s:.2f} s; a second call took {called_ms:.3g} ms")


def _tell(model: LoadedModel) -> None:
    manifest = model.manifest
    made_by = ", ".join(f"{name} {version}" for name, version in manifest.made_by.items())
    typer.echo(f"{manifest.model}, exported by {made_by}")
    typer.echo(f"sha256 {model.sha256}")
    for line in model.describe_call():
        typer.echo(f"  takes {line}")


def _layout(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _dynamic(asked: list[str]) -> dict | bool | None:
    """["x:0=batch"] -> {"x": {0: "batch"}}; ["all"] -> True."""
    if asked == ["all"]:
        return True
    made: dict[str, dict[int, str]] = {}
    for text in asked:
        where, _, name = text.partition("=")
        argument, _, dim = where.rpartition(":")
        if not (argument and dim.isdecimal() and name.isidentifier()):
            raise UsageError(f"--dynamic {text} has no meaning",
                             do="give all, or argument:dimension=name such as x:0=batch")
        made.setdefault(argument, {})[int(dim)] = name
    return made or None
