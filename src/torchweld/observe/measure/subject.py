"""What is profiled: a callable with its inputs, one call of which is a step."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch

from torchweld.core.errors import UsageError, one_line
from torchweld.observe.measure.metas import meta_of
from torchweld.observe.measure.traffic import tensors_in


@dataclass(frozen=True)
class Subject:
    """`run(*args, **kwargs)` stands in for `model`, whose modules give their names. Training:
    `run` returns the loss, and a step is its backward too. `device`: "cpu" or "cuda"."""

    name: str
    run: Callable
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    train: bool = False
    device: str = "cpu"
    model: torch.nn.Module | None = None

    def step(self) -> object:
        """Errors: UsageError if the loss is no scalar."""
        if not self.train:
            with torch.no_grad():
                return self.run(*self.args, **self.kwargs)
        for module in self.roots:
            module.zero_grad(set_to_none=True)
        loss = self.run(*self.args, **self.kwargs)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise UsageError(f"{self.name} returned no loss to train with",
                             do="return a scalar that requires a gradient")
        loss.backward()
        return loss.detach()

    def timed_step(self) -> float:
        """Seconds of a step, until its device is done."""
        start = time.perf_counter()
        self.step()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    @cached_property
    def roots(self) -> tuple[torch.nn.Module, ...]:
        """`model`, or the modules that a function refers to by name."""
        if self.model is not None:
            return (self.model,)
        try:
            names = inspect.getclosurevars(inspect.unwrap(self.run))
        except TypeError:  # no function of Python's
            return ()
        values = (*names.nonlocals.values(), *names.globals.values())
        return tuple(v for v in values if isinstance(v, torch.nn.Module))

    @property
    def module_names(self) -> dict[int, str]:
        """The path of each module below its root, by its id."""
        return {id(module): path for root in self.roots for path, module in root.named_modules()}

    @property
    def input_texts(self) -> list[str]:
        """dtype and shape of each tensor among the inputs."""
        return [str(meta_of(tensor)) for tensor in tensors_in((self.args, self.kwargs))]

    @property
    def resident_bytes(self) -> int:
        """Parameters, buffers and inputs, each storage once."""
        state = [t for root in self.roots for t in (*root.parameters(), *root.buffers())]
        tensors = [*state, *tensors_in((self.args, self.kwargs))]
        strided = [t.untyped_storage() for t in tensors if t.layout == torch.strided]
        return sum({s.data_ptr(): s.nbytes() for s in strided}.values())


def first_step(subject: Subject) -> float:
    """Seconds of the first step. Errors: UsageError, in one line, for whatever it raises."""
    try:
        return subject.timed_step()
    except UsageError:
        raise
    except torch.OutOfMemoryError:
        raise UsageError(f"{subject.name} does not fit in memory",
                         do="make its inputs smaller") from None
    except (Exception, SystemExit) as error:
        raise UsageError(f"{subject.name} raises {one_line(error)}",
                         do="give a callable and inputs that work together") from error
