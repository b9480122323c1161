"""torchweld in the training loops of others: transformers, accelerate, Lightning.

Each function imports its library when it is called; none is a dependency.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TypeVar

from torchweld.api import fuse
from torchweld.core.errors import EnvironmentProblem
from torchweld.core.options import Options

_Trainer = TypeVar("_Trainer")
_Module = TypeVar("_Module")
_STEPS = ("training_step", "validation_step", "test_step", "predict_step")


def fuse_trainer(trainer: _Trainer, **options: Any) -> _Trainer:
    """A transformers `Trainer` whose model is fused; `options` as `fuse` takes them. The same as
    `Trainer(torchweld.fuse(model), ...)`. Gives the trainer that it was given. Its checkpoints are
    those of the original model."""
    found: Any = trainer
    found.model = found.model_wrapped = fuse(found.model, **options)
    found.callback_handler.model = found.model
    return trainer


def accelerate_plugin(**options: Any) -> Any:
    """`Accelerator(dynamo_plugin=accelerate_plugin())`: models that are prepared are compiled by
    torchweld. `options` as `fuse` takes them. `Accelerator(dynamo_backend="torchweld")` is refused
    by accelerate, which has a fixed list. Errors: EnvironmentProblem without accelerate."""
    try:
        from accelerate.utils import TorchDynamoPlugin
    except ImportError as error:
        raise EnvironmentProblem("accelerate is missing", do="pip install accelerate") from error
    chosen = Options().with_(**options)

    class TorchweldPlugin(TorchDynamoPlugin):  # type: ignore[misc]
        def to_kwargs(self) -> dict[str, Any]:
            given = {"backend": "torchweld", "options": asdict(chosen), "dynamic": chosen.dynamic}
            return {**given, "fullgraph": self.fullgraph, "disable": self.disable}

    return TorchweldPlugin(backend="eager")  # any of its list but "no"; to_kwargs has the real one


def fuse_lightning(module: _Module, **options: Any) -> _Module:
    """A LightningModule with `forward` and the steps that it defines fused; `options` as `fuse`
    takes them. Lightning calls the steps, so that `fuse(module)` alone would reach only the steps
    that call `self(...)`."""
    found: Any = module
    steps = tuple(name for name in _STEPS if _defines(type(found), name))
    return fuse(found, methods=steps, **options)  # type: ignore[no-any-return]


def _defines(kind: type, name: str) -> bool:
    """A class of the user's has this method, not only Lightning's base."""
    owners = (c for c in kind.__mro__ if name in vars(c))
    owner = next(owners, None)
    return owner is not None and not owner.__module__.startswith(("lightning", "pytorch_lightning"))
