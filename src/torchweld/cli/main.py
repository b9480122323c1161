"""The command line. Whatever a user can get wrong ends in one line on stderr and exit code 2."""
from __future__ import annotations

import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from torchweld.core.errors import EnvironmentProblem, TorchweldError, UsageError

app = typer.Typer(
    help="Kernel fusion for PyTorch: exact, measured, explained.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]})


_wants_traceback: ContextVar[bool] = ContextVar("wants_traceback", default=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        from torchweld import __version__

        typer.echo(f"torchweld {__version__}")
        raise typer.Exit


@app.callback()
def options_of_all(
    version: Annotated[bool, typer.Option(
        "--version", is_eager=True, callback=_show_version, help="Print the version.")] = False,
    traceback: Annotated[bool, typer.Option(
        help="On an error, also print the Python traceback.")] = False,
) -> None:
    """Kernel fusion for PyTorch: exact, measured, explained."""
    _wants_traceback.set(traceback)


class Device(str, Enum):
    """Values of --device."""

    cpu = "cpu"
    cuda = "cuda"


class DType(str, Enum):
    """Values of --dtype."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float64 = "float64"


class Way(str, Enum):
    """Values of --way."""

    eager = "eager"
    torchweld = "torchweld"
    inductor = "inductor"


class Where(str, Enum):
    """Names of targets: `targets.find.target_asked`."""

    h100 = "h100"
    h200 = "h200"
    a100 = "a100"
    sm_100 = "sm_100"
    generic = "generic"
    cpu = "cpu"


@app.command()
def report(
    target: Annotated[str, typer.Argument(
        help="A model of the zoo, path/to/file.py:function, or a saved report (.json).")],
    device: Annotated[Device | None, typer.Option(help="Default: a GPU if there is one.")] = None,
    dtype: Annotated[DType | None, typer.Option(
        help="Default: float32 on the CPU, bfloat16 on a GPU. A model from a file is not "
        "converted.")] = None,
    train: Annotated[bool, typer.Option(
        help="Measure a training step: forward and backward.")] = False,
    html: Annotated[Path | None, typer.Option(
        help="Also write the report as a page, with a profile of each kernel.")] = None,
    json: Annotated[Path | None, typer.Option(
        help="Also write the report as JSON, with a profile of each kernel; - for stdout.")] = None,
    against: Annotated[str | None, typer.Option(
        help="What to compare with, separated by commas: eager, inductor, "
        "inductor-reduce-overhead, inductor-max-autotune."),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of CPU threads.")] = None,
    seed: Annotated[int, typer.Option(help="Seed for the weights and inputs of a zoo model.")] = 0,
    tiny: Annotated[bool, typer.Option(help="Use a small version of a zoo model.")] = False,
    seconds: Annotated[float, typer.Option(
        min=0, help="Time budget for timing, in seconds.")] = 20.0,
) -> None:
    """Compare TARGET in eager, torch.compile and torchweld, and show what was fused and why."""
    with errors_in_one_line():
        from torchweld.cli.report import Request, run

        run(Request(target, device and device.value, dtype and dtype.value, train, html, json,
                    against, threads, seed, tiny, seconds, _command()))


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="A report, as `report --json` writes it.")],
    after: Annotated[Path, typer.Argument(help="Another one, of the same target.")],
    tolerance: Annotated[float, typer.Option(
        min=0, help="Report a change if it is larger than this and larger than the noise.")] = 0.05,
    relative_to: Annotated[str | None, typer.Option(
        help="Judge times relative to this way, such as eager. For machines whose speed varies."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare two reports. Exit code 1 if something became worse by more than the noise."""
    with errors_in_one_line():
        from torchweld.cli.compare import run

        if run(before, after, tolerance, relative_to, json):
            raise typer.Exit(1)


@app.command()
def profile(
    target: Annotated[str, typer.Argument(help="A model of the zoo, or path/to/file.py:function.")],
    way: Annotated[Way, typer.Option(help="What to profile.")] = Way.eager,
    device: Annotated[Device | None, typer.Option(help="Default: a GPU if there is one.")] = None,
    dtype: Annotated[DType | None, typer.Option(
        help="Default: float32 on the CPU, bfloat16 on a GPU. A model from a file is not "
        "converted.")] = None,
    train: Annotated[bool, typer.Option(
        help="Measure a training step: forward and backward.")] = False,
    json: Annotated[Path | None, typer.Option(
        help="Also write the profile as JSON; - for stdout.")] = None,
    trace: Annotated[Path | None, typer.Option(
        help="Also write the trace, for Perfetto or chrome://tracing, with the kernels by "
        "operation.")] = None,
    opportunities: Annotated[bool | None, typer.Option(
        help="With --way eager: also plan what fusion would save, which takes as long as "
        "capturing the model. Default: only if that is quick.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of CPU threads.")] = None,
    seed: Annotated[int, typer.Option(help="Seed for the weights and inputs of a zoo model.")] = 0,
    tiny: Annotated[bool, typer.Option(help="Use a small version of a zoo model.")] = False,
    predict: Annotated[bool, typer.Option(
        "--predict", help="Run nothing. Print the expected kernels in order, each with its limit "
        "and its predicted time. The next profile shows them beside the measurement.")] = False,
    elsewhere: Annotated[Where | None, typer.Option(
        "--target",
        help="With --predict: the device to predict for. It need not be in this machine.")] = None,
) -> None:
    """Show where the time of TARGET goes. Each kernel has its operation, module, source line,
    predicted and measured time, and what limits it. Also shows what fusion would save."""
    with errors_in_one_line():
        from torchweld.cli import predict as guess
        from torchweld.cli.profile import Request, run

        asked = Request(target, way.value, device and device.value, dtype and dtype.value, train,
                        json, trace, opportunities, threads, seed, tiny)
        if elsewhere and not predict:
            raise UsageError("--target is for --predict", do="add --predict, or use --device")
        guess.run(asked, elsewhere and elsewhere.value) if predict else run(asked)


@app.command()
def plan(
    target: Annotated[str, typer.Argument(help="A model of the zoo, or path/to/file.py:function.")],
    device: Annotated[Where, typer.Option(
        "--target",
        help="The device to plan for. It need not be in this machine. cpu: this machine's.")],
    train: Annotated[bool, typer.Option(
        help="Plan a training step: forward, loss and backward.")] = False,
    dtype: Annotated[DType | None, typer.Option(
        help="Default: float32 on the CPU, bfloat16 on a GPU. A model from a file is not "
        "converted.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the plan as JSON.")] = None,
    refusals: Annotated[bool, typer.Option(
        "--refusals", help="Also show what was not fused, and why.")] = False,
    tiny: Annotated[bool, typer.Option(help="Use a small version of a zoo model.")] = False,
) -> None:
    """Plan TARGET for a device: show each kernel with its template, schedule and predicted time,
    and each library call. Nothing is compiled or run."""
    with errors_in_one_line():
        from torchweld.cli.plan import Request, run
        from torchweld.elsewhere.data import Asked

        asked = Asked(target, (device.value,), train, dtype and dtype.value, tiny)
        run(Request(asked, json, refusals))


@app.command()
def calibrate(
    renew: Annotated[bool, typer.Option("--renew", help="Measure again.")] = False,
    json: Annotated[Path | None, typer.Option(help="Also write the rates as JSON.")] = None,
) -> None:
    """Show how fast this CPU multiplies matrices with the library and with torchweld's own
    kernels. torchweld uses these rates to choose between them. Measured once per machine."""
    with errors_in_one_line():
        from torchweld.cli.calibrate import calibrate as show

        show(renew, json)


@app.command()
def zoo() -> None:
    """List the models that have a name."""
    with errors_in_one_line():
        from torchweld.cli.zoo import show_zoo

        show_zoo()


cache_app = typer.Typer(
    help="Show, clear, export or import the kernels and plans that are kept on disk.",
    no_args_is_help=True)
app.add_typer(cache_app, name="cache")


@cache_app.command("show")
def show_cache() -> None:
    """Show where the cache is, how large it is, and its limit."""
    with errors_in_one_line():
        from torchweld.cli.cache import show

        show()


@cache_app.command("clear")
def clear_cache(
    days: Annotated[float, typer.Option(
        min=0, help="Only remove files that were not used for so many days.")] = 0.0,
) -> None:
    """Remove what is in the cache. It is made again when it is needed."""
    with errors_in_one_line():
        from torchweld.cli.cache import clear

        clear(days)


@cache_app.command("export")
def export_cache(
    path: Annotated[Path, typer.Argument(help="The archive to write, such as kernels.zip.")],
) -> None:
    """Write the cache to one file, for containers and clusters: one machine compiles, others
    load."""
    with errors_in_one_line():
        from torchweld.cli.cache import export

        export(path)


@cache_app.command("import")
def import_cache(
    path: Annotated[Path, typer.Argument(help="An archive that `cache export` wrote.")],
) -> None:
    """Add an archive to the cache. Its kernels will be run: import only what you trust."""
    with errors_in_one_line():
        from torchweld.cli.cache import import_

        import_(path)


def _traceback_if_wanted(error: Exception) -> None:
    if _wants_traceback.get():
        traceback.print_exception(error, file=sys.stderr)


def _command() -> str:
    return shlex.join(["torchweld", *sys.argv[1:]])


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """UsageError and EnvironmentProblem become their one line and exit code 2."""
    try:
        yield
    except (UsageError, EnvironmentProblem) as error:
        _traceback_if_wanted(error)
        typer.echo(f"torchweld: {error}", err=True)
        raise typer.Exit(2) from None
    except TorchweldError as error:
        _traceback_if_wanted(error)
        typer.echo(f"torchweld: {error} (this is a bug of torchweld)", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        sys.exit(130)
