"""`torchweld.profile`, once the callable is there that runs the target in the way asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from torchweld.core.options import Options
from torchweld.observe.measure.subject import Subject
from torchweld.observe.measure.traffic import tensors_in
from torchweld.observe.profile.opportunities import PlanOf
from torchweld.observe.profile.run import profile_subject
from torchweld.observe.record.profile import Profile


def profile_call(
    run: Callable,
    original: Callable,
    args: tuple,
    kwargs: dict,
    *,
    way: str,
    train: bool,
    name: str | None,
    options: Options | None,
    records: Callable[[], Sequence],
    plan_of: PlanOf | None,
    insists: bool,
    trace: Path | None,
) -> Profile:
    """Arguments as `torchweld.profile`; `run` stands in for `original`; `records` gives the
    pipeline's records of it, `plan_of` plans a captured graph,
    None: nobody looks for fusions; `insists`: however long that takes."""
    model = original if isinstance(original, torch.nn.Module) else None
    name = name or getattr(original, "__name__", type(original).__name__)
    device = _device(model, args, kwargs)
    subject = Subject(name, run, args, kwargs, train, device, model)
    return profile_subject(subject, way, records=records, plan_of=plan_of, insists=insists,
                           options=options, trace=trace)


def _device(model: torch.nn.Module | None, args: tuple, kwargs: dict) -> str:
    """cuda if any tensor is there."""
    state = [*model.parameters(), *model.buffers()] if model else []
    on_gpu = any(t.is_cuda for t in (*state, *tensors_in((args, kwargs))))
    return "cuda" if on_gpu else "cpu"
