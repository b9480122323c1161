"""torchweld in the training loops of transformers, accelerate and Lightning.

Each function imports its library when it is called. None of them is a dependency.
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
    """Fuses the model of a transformers `Trainer`, and returns the same trainer. It does the same
    as `Trainer(torchweld.fuse(model), ...)`. Checkpoints are those of the original model.

    `options`: as `torchweld.fuse` takes them. Errors: UsageError for options that are not valid."""
    found: Any = trainer
    found.model = found.model_wrapped = fuse(found.model, **options)
    found.callback_handler.model = found.model
    return trainer


def accelerate_plugin(**options: Any) -> Any:
    """A plugin for accelerate: `Accelerator(dynamo_plugin=accelerate_plugin())`. torchweld then
    compiles the models that the accelerator prepares. `Accelerator(dynamo_backend="torchweld")`
    does not work, because accelerate accepts only a fixed list of names.

    `options`: as `torchweld.fuse` takes them. Errors: EnvironmentProblem if accelerate is not
    installed, UsageError for options that are not valid."""
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
    """A LightningModule whose `forward` and step methods are fused: `training_step`,
    `validation_step`, `test_step` and `predict_step`, if the module defines them. Lightning calls
    these methods. `fuse(module)` alone would reach only what they call through `self(...)`.

    `options`: as `torchweld.fuse` takes them. Errors: UsageError, as `torchweld.fuse`."""
    found: Any = module
    steps = tuple(name for name in _STEPS if _defines(type(found), name))
    return fuse(found, methods=steps, **options)  # type: ignore[no-any-return]


def _defines(kind: type, name: str) -> bool:
    """A class of the user's has this method, not only Lightning's base."""
    owners = (c for c in kind.__mro__ if name in vars(c))
    owner = next(owners, None)
    return owner is not None and not owner.__module__.startswith(("lightning", "pytorch_lightning"))
