"""What fused objects need of the folders behind them, imported when the first graph is there:
importing torchweld stays cheap."""

from __future__ import annotations

import torch

from torchweld.capture import aot
from torchweld.capture.captured import Captured
from torchweld.capture.scores import Scores
from torchweld.core.options import Options


def begin(options: Options) -> None:
    """runtime.load.begin: g++ works while the graph is captured."""
    from torchweld.runtime import load

    load.begin(options)


def compile_graph(captured: Captured, options: Options) -> aot.Boxed:
    """pipeline.compile_graph."""
    from torchweld import pipeline

    return pipeline.compile_graph(captured, options)


def takes(options: Options, scores: Scores) -> bool:
    """plan.scores.takes.taken_by, at the rates of this machine."""
    from torchweld.calibration.target import with_rates
    from torchweld.core import dtypes
    from torchweld.plan.scores.takes import taken_by
    from torchweld.targets.find import target_of

    kind, target = dtypes.from_torch(scores.dtype), target_of(scores.device)
    return taken_by(scores, with_rates(target, [kind], options))


def watch(options: Options, places: tuple, lengths: tuple, tensors: list[torch.Tensor]):
    """runtime.native.watch."""
    from torchweld.runtime import native

    return native.watch(options, places, lengths, tensors)
