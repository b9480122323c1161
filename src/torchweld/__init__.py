"""Kernel fusion for PyTorch: exact, measured, explained."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchweld.api import fuse, records, unfuse
    from torchweld.core.errors import TorchweldError
    from torchweld.core.events import TorchweldWarning, events
    from torchweld.core.options import Options
    from torchweld.deploy.export import export
    from torchweld.deploy.load import load
    from torchweld.exact.verify import verify
    from torchweld.observe.entry import profile
    from torchweld.observe.views.explain import explain

__version__ = "0.1.0"

_HOME = {
    "export": "torchweld.deploy.export",
    "fuse": "torchweld.api",
    "load": "torchweld.deploy.load",
    "unfuse": "torchweld.api",
    "records": "torchweld.api",
    "profile": "torchweld.observe.entry",
    "Options": "torchweld.core.options",
    "TorchweldError": "torchweld.core.errors",
    "TorchweldWarning": "torchweld.core.events",
    "events": "torchweld.core.events",
    "verify": "torchweld.exact.verify",
    "explain": "torchweld.observe.views.explain",
}
__all__ = [
    "Options",
    "TorchweldError",
    "TorchweldWarning",
    "events",
    "explain",
    "export",
    "fuse",
    "load",
    "profile",
    "records",
    "unfuse",
    "verify",
]


if not TYPE_CHECKING:  # for a type checker a name that is not above is an error

    def __getattr__(name: str):
        """Names are imported when first used, so that `import torchweld` costs nothing."""
        if name not in _HOME:
            raise AttributeError(f"module 'torchweld' has no attribute {name!r}")
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
