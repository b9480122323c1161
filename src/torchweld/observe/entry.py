"""`torchweld.profile`."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path

import torch

from torchweld.api import fuse, records, unfuse
from torchweld.core.errors import UsageError
from torchweld.core.options import Options
from torchweld.exact.trees import as_arguments
from torchweld.observe.measure.subject import Subject
from torchweld.observe.measure.traffic import tensors_in
from torchweld.observe.profile.run import profile_subject
from torchweld.observe.record.profile import Profile
from torchweld.observe.views.profile import plain_text
from torchweld.pipeline import plan_graph


class ShownProfile(Profile):
    """A profile that prints as its tables."""

    def __str__(self) -> str:
        return plain_text(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def profile(
    target: Callable,
    example_inputs=(),
    *,
    way: str | None = None,
    train: bool = False,
    name: str | None = None,
    options: Options | None = None,
    trace: Path | None = None,
    opportunities: bool | None = None,
) -> ShownProfile:
    """Shows where the time of a call goes: each kernel with its operation, module and source line,
    its measured and predicted time in us, and what limits it.

    `target`: a module or a function. If `fuse` made it, it is profiled as it is.
    `example_inputs`: as `fuse` takes them.
    `way`: "eager", "torchweld" or "inductor". None: torchweld if `target` is fused, else eager.
    `train`: `target` returns the loss, a scalar; its backward is profiled too.
    `name`: of the target, in the profile.
    `trace`: also write the trace to this file, for Perfetto or chrome://tracing.
    `opportunities`: in eager, whether to look for possible fusions, which costs a capture of the
    target. None: if the whole takes less than three runs plus ten seconds.

    Errors: UsageError if the target does not run with these inputs, or the file cannot be written.
    """
    original = unfuse(target)
    way = way or ("eager" if original is target else "torchweld")
    args, kwargs = as_arguments(example_inputs)
    run = _as_run(target, args, kwargs, way, train, options)
    model = original if isinstance(original, torch.nn.Module) else None
    name = name or getattr(original, "__name__", type(original).__name__)
    subject = Subject(name, run, args, kwargs, train, _device(model, args, kwargs), model)
    found = profile_subject(
        subject, way, records=lambda: records(run), options=options, trace=trace,
        plan_of=None if opportunities is False else plan_graph, insists=opportunities is True,
    )  # fmt: skip
    return ShownProfile(**vars(found))


def _as_run(target, args: tuple, kwargs: dict, way: str, train: bool, options: Options | None):
    """What stands in for `target` when it runs that way."""
    original = unfuse(target)
    if way == "torchweld":
        if original is not target:
            return target
        return fuse(target, None if train else (args, kwargs), options=options)
    if way == "inductor":
        # its CPU kernels are seen in a trace only when they are asked to
        return torch.compile(original, options={"cpp.enable_kernel_profile": True})
    if way == "eager":
        return original
    raise UsageError(f"way={way!r} is not valid", do="choose eager, torchweld or inductor")


def _device(model: torch.nn.Module | None, args: tuple, kwargs: dict) -> str:
    """cuda if any tensor is there."""
    state = [*model.parameters(), *model.buffers()] if model else []
    on_gpu = any(t.is_cuda for t in (*state, *tensors_in((args, kwargs))))
    return "cuda" if on_gpu else "cpu"
