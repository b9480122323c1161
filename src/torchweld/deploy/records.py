"""What an archive says of itself: the records of its manifest, and their JSON (runtime.codec)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Union

from torchweld.codegen.source import KernelSource
from torchweld.core.errors import UsageError
from torchweld.ir.nodes import Symbol
from torchweld.ir.size import Size
from torchweld.runtime.codec import decode, encode
from torchweld.runtime.cubin import Binary
from torchweld.runtime.launch_table import Handle, TileMap

FORMAT = 1
Plain = Union[bool, int, float, str, None]
# (name of a relation, Size, Size), or ("and" | "or" | "not", guard, ...)
Guard = tuple


def same_plain(a, b) -> bool:
    """Whether they are one constant: 1, 1.0 and True are three, 0.0 and -0.0 two, NaN is one."""
    return type(a) is type(b) and repr(a) == repr(b)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that a call takes or returns. `name`: where it is among the arguments or results.
    `strides`: of arguments, those that kernels were made for: others are copied first."""

    name: str
    dtype: str
    device: str
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """What a call must be. `positional`: parameters of forward that may be given by position;
    `rest`: the one that takes all further ones (*args). `names`: the arguments of the exported
    call; `defaults`: of all parameters whose default is a plain value. `tree`: how the values of
    `names` are nested, as torch's pytree writes it; `constants`: for each of its leaves (value,),
    or () for a tensor. `ranges`: (size, least, most or None); `guards`: what else must be true of
    sizes."""

    positional: tuple[str, ...]
    rest: str | None
    names: tuple[str, ...]
    defaults: Mapping[str, Plain]
    tree: str
    constants: tuple[tuple[Plain, ...], ...]
    tensors: tuple[TensorSpec, ...]
    symbols: tuple[Symbol, ...] = ()
    ranges: tuple[tuple[Size, int, int | None], ...] = ()
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True, slots=True)
class Returned:
    """What a call returns: `tree` of leaves, of which `tensors` has the name and layout, and None
    for constants."""

    tree: str
    tensors: tuple[TensorSpec | None, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor that the archive holds. `kind`: parameter, buffer, local (a buffer
    that is no part of the state_dict) or constant. `number`: two names
    with the same are one tensor (tied weights). `part`: the file with its values, row by row."""

    name: str
    kind: str
    number: int
    dtype: str
    device: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    part: str


@dataclass(frozen=True, slots=True)
class Needs:
    """What the machine that loads must have. `code`: a hash of torchweld's own files. `python`: for
    the quick way into kernels, which those of a GPU need. `features`: of the processor. `gpu`: its
    compute capability; None: none is needed."""

    system: str
    torch: str
    torchweld: str
    code: str
    python: str
    features: tuple[str, ...]
    gpu: str | None


@dataclass(frozen=True, slots=True)
class Part:
    """A file of the archive."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """Where weights are that are not inside: `path` is relative to the archive's folder, or
    absolute. `form`: safetensors or torch."""

    path: str
    form: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """`held`: all tensors. `order`: for each input of the graph, its position among `held` and then
    the tensors of a call. `constants`: (buffer of the graph, position in `held`). `static`: inputs
    of the graph that stay where they are between calls. `plan`, `helpers`, `native`: names of
    parts. `gpu_kernels`: the binaries of each kernel of a GPU, for addresses of one alignment or
    another; in the plan, a source's text is its number. `extra`: sources that the runtime itself
    launches (copies), with their numbers."""

    format: int
    model: str
    made_by: Mapping[str, str]
    needs: Needs
    call: Call
    returned: Returned
    held: tuple[Held, ...]
    order: tuple[int, ...]
    constants: tuple[tuple[str, int], ...]
    static: tuple[int, ...]
    plan: str
    helpers: str | None
    native: str | None
    parts: Mapping[str, Part]
    weights: WeightsFile | None = None
    cuda_graphs: bool = True
    gpu_kernels: tuple[tuple[Binary, ...], ...] = ()
    extra: tuple[tuple[KernelSource, int], ...] = ()


_RECORDS = (
    TensorSpec, Call, Returned, Held, Needs, Part, WeightsFile, Manifest, Symbol, Binary, Handle,
    TileMap,
)  # fmt: skip


def encoded(thing) -> str:
    """JSON of records of this module and of kernels. Raises TypeError for what has none."""
    return encode(thing, _RECORDS)


def decoded(text: str):
    """What `encoded` was given. Raises ValueError, KeyError or TypeError for other text."""
    return decode(text, _RECORDS)


def manifest_text(manifest: Manifest) -> str:
    """JSON, to be read by people too. Raises TypeError for what has no JSON form."""
    return json.dumps(json.loads(encoded(manifest)), indent=1)


def manifest_of(text: str) -> Manifest:
    """Errors: UsageError for text that `manifest_text` did not write."""
    try:
        made_for = json.loads(text).get("format")
        if made_for != FORMAT:
            raise UsageError(f"the archive has format {made_for}, this torchweld reads {FORMAT}",
                             do="export the model again with this version of torchweld")
        found = decoded(text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"the archive's manifest cannot be read: {error}",
                         do="copy or export it anew") from None
    if not isinstance(found, Manifest):
        raise UsageError("the archive has no manifest of a model", do="export it anew")
    return found
