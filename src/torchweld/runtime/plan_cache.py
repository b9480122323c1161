"""Finished plans on disk: a second process neither plans nor generates."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from torchweld.codegen.source import KernelBundle, KernelSource
from torchweld.core.errors import TorchweldError
from torchweld.core.options import Options
from torchweld.core.tf32 import products_have_tf32
from torchweld.ir.nodes import Graph
from torchweld.ir.parser import parse_graph
from torchweld.ir.printer import text
from torchweld.runtime.build import cpu_identity
from torchweld.runtime.cache import Artifacts, digest, open_cache
from torchweld.runtime.codec import decode, encode

_SUFFIX = ".plan.json"


@dataclass(frozen=True)
class StoredPlan:
    """`decisions`: frozen records or JSON values, for `explain`."""

    graph: Graph
    bundles: Mapping[str, KernelBundle]
    decisions: tuple = ()


class PlanCache:
    """`records`: the classes that decisions are made of."""

    def __init__(self, artifacts: Artifacts, records: Iterable[type] = ()) -> None:
        self._artifacts, self._records = artifacts, tuple(records)

    @classmethod
    def open(cls, options: Options, records: Iterable[type] = ()) -> PlanCache:
        return cls(open_cache(options), records)

    def key(self, graph: Graph | str, options: Options, device: str, *more: str) -> str:
        """`graph`: as lowered. `device`: as torch prints it. `more`: anything else that the plan
        depends on."""
        lowered = graph if isinstance(graph, str) else text(graph)
        return digest(
            lowered,
            repr(options.cache_key()),
            *device_identity(str(device)),
            *code_identity(),
            *more,
        )

    def get(self, key: str) -> StoredPlan | None:
        """The plan, or None where there is none that can be read."""
        content = self._artifacts.get(key, _SUFFIX)
        if content is None:
            return None
        try:
            return plan_of(content.decode(), self._records)
        except (ValueError, KeyError, IndexError, TypeError, TorchweldError):
            return None

    def put(self, key: str, plan: StoredPlan) -> None:
        """Keeps the plan. Raises TypeError if its decisions are of classes that `records` does not
        name."""
        self._artifacts.put(key, _SUFFIX, plan_text(plan, self._records).encode())


def plan_text(plan: StoredPlan, records: Iterable[type] = ()) -> str:
    """JSON that `plan_of` reads. Raises TypeError for decisions of classes other than `records`."""
    texts: dict[str, int] = {}  # equal layers have equal sources, of 30 KB each
    numbered = with_texts(plan.bundles, lambda s: texts.setdefault(s.text, len(texts)))
    stored = {
        "graph": text(plan.graph),
        "bundles": numbered,
        "texts": tuple(texts),
        "decisions": tuple(plan.decisions),
    }
    return encode(stored, records)


def plan_of(stored_text: str, records: Iterable[type] = ()) -> StoredPlan:
    """Raises ValueError, KeyError, IndexError, TypeError or TorchweldError for other text."""
    stored = decode(stored_text, records)
    bundles = with_texts(stored["bundles"], lambda s: stored["texts"][s.text])
    return StoredPlan(parse_graph(stored["graph"]), bundles, stored["decisions"])


def with_texts(
    bundles: Mapping[str, KernelBundle], text_of: Callable[[KernelSource], str | int]
) -> dict[str, KernelBundle]:
    """The bundles with another text, or number, for the text of each source."""

    def changed(source: KernelSource | None) -> KernelSource | None:
        if source is None:
            return None
        return replace(source, text=text_of(source), otherwise=changed(source.otherwise))

    return {n: replace(b, sources=tuple(map(changed, b.sources))) for n, b in bundles.items()}


def device_identity(device: str) -> tuple[str, ...]:
    """What measurements on a device depend on."""
    if not device.startswith("cuda"):
        return (device, str(torch.get_num_threads()), *cpu_identity())
    properties = torch.cuda.get_device_properties(torch.device(device))
    return (
        "cuda",
        properties.name,
        f"{properties.major}.{properties.minor}",
        str(torch.version.cuda),
        f"cuDNN {torch.backends.cudnn.version()}, TF32 {torch.backends.cudnn.allow_tf32}",
        f"products in TF32: {products_have_tf32()}",
    )


@cache
def code_identity() -> tuple[str, ...]:
    """Versions, and the content of this package: a changed code generator must not find plans of
    the old one."""
    package = Path(__file__).parent.parent
    sources = sorted(p for pattern in ("*.py", "*.h") for p in package.rglob(pattern))
    return (torch.__version__, _version("triton"), digest(*(p.read_bytes() for p in sources)))


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"
