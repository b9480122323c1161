"""`torchweld.load`: an archive to a callable. Neither Dynamo nor a compiler nor `pickle` has a part
in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from torchweld.capture.results import Results
from torchweld.core import dtypes
from torchweld.core.errors import UsageError
from torchweld.core.options import Options
from torchweld.core.torch_private import in_forward_ad
from torchweld.deploy import machine, weights
from torchweld.deploy.archive import Reader
from torchweld.deploy.binaries import Shipped
from torchweld.deploy.contract import Contract, tree_of
from torchweld.deploy.records import Held, Manifest, TensorSpec
from torchweld.ir.nodes import Buffer, Graph
from torchweld.runtime.load import load_ordered
from torchweld.runtime.plan_cache import plan_of

_ANEW = "export it anew"


class LoadedModel(torch.nn.Module):
    """A model from an archive. It takes the arguments of the exported model's `forward` and returns
    what that returns, without gradients. Its parameters and buffers have the names that they had,
    and new values may be copied to them (`load_state_dict`). `manifest`: what the archive says of
    itself. `sha256`: of the manifest."""

    def __init__(self, manifest: Manifest, sha256: str, program, tensors: Sequence) -> None:
        super().__init__()
        self.manifest, self.sha256 = manifest, sha256
        self._program, self._order = program, manifest.order
        self._contract = Contract(manifest.call, manifest.model)
        self._results = Results(tree_of(manifest.returned.tree, manifest.model))
        self._slots = [
            _placed(self, record, t) for record, t in zip(manifest.held, tensors)
        ]
        self._kinds = tuple({torch.device(t.device).type for t in manifest.call.tensors})
        super().train(False)

    def forward(self, *args, **kwargs):
        """Raises UsageError where a call is none of those that the archive was exported for."""
        if any(map(torch.is_autocast_enabled, self._kinds)):
            raise UsageError("an archive has the dtypes that it was exported with, not autocast's",
                             do="call it outside of autocast")
        if in_forward_ad():
            raise UsageError("an archive makes no derivatives", do="fuse the model itself")
        inputs = self._contract.tensors(args, kwargs)
        values = [owner[name] for owner, name in self._slots]
        values += map(_readable, inputs)
        return self._results(self._program([values[i] for i in self._order]))

    def train(self, mode: bool = True) -> LoadedModel:
        """Itself, for mode False. Errors: UsageError for True: an archive has no gradients."""
        if mode:
            raise UsageError("an archive is for inference", do="train the model itself")
        return super().train(False)

    def __reduce_ex__(self, protocol):
        raise UsageError("a loaded archive cannot be copied or pickled", do="load its file again")

    def describe_call(self) -> list[str]:
        """A line for each tensor that a call takes, and for each condition on their sizes."""
        return self._contract.described()

    def extra_repr(self) -> str:
        return f"{self.manifest.model}, {self.sha256[:12]}"


def load(
    path: str | Path,
    *,
    sha256: str | None = None,
    weights: str | Path | None = None,
    cache_dir: str | Path | None = None,
) -> LoadedModel:
    """The model that `torchweld.export` wrote to `path`, ready to be called.

    `sha256`: what the archive must be, as `export` returned it. Without it the file must belong to
    this user or to root, and nobody else may be able to write to it: its kernels are run.
    `weights`: where the file of weights is now, if they are not inside. `cache_dir`: where kernels
    are unpacked, as `Options.cache_dir`.

    Raises UsageError for a file that is no archive, damaged, or not to be trusted;
    EnvironmentProblem where versions or devices differ from what it was compiled for.
    """
    options = Options().with_(cache_dir=cache_dir)
    with Reader(Path(path), sha256) as reader:
        manifest = reader.manifest
        machine.check(manifest.needs)
        tensors = _tensors(reader, weights)
        program = _program(reader, tensors, options)
        return LoadedModel(manifest, reader.sha256, program, tensors)


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy that kernels can read: with the sign that it has in memory, and on a
    GPU at a multiple of 16 bytes, for which alone they are compiled."""
    tensor = tensor.resolve_neg()
    return tensor.clone() if tensor.is_cuda and tensor.data_ptr() & 15 else tensor


def _program(reader: Reader, tensors: Sequence[torch.Tensor], options: Options):
    manifest = reader.manifest
    try:
        plan = plan_of(reader.read(manifest.plan).decode())
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UsageError(f"the plan of {reader.path} cannot be read: {error}",
                         do=_ANEW) from None
    _check_plan(plan.graph, manifest, reader.path)
    if any("torchweld.seed" in node.target for node in plan.graph.nodes if hasattr(node, "target")):
        from torchweld.capture import random  # noqa: F401  (which registers the operation)
    constants = {name: tensors[position] for name, position in manifest.constants}
    return load_ordered(
        plan.graph, plan.bundles, constants, options.with_(cuda_graphs=manifest.cuda_graphs),
        Shipped(reader, options), static_inputs=frozenset(manifest.static),
    )  # fmt: skip


def _check_plan(graph: Graph, manifest: Manifest, path: Path) -> None:
    """Kernels read memory as the plan says. Errors: UsageError where the manifest gives it other
    tensors."""
    given = (*manifest.held, *manifest.call.tensors)
    wanted = [*zip(graph.inputs, manifest.order), *manifest.constants]
    inside = all(0 <= position < len(given) for _, position in wanted)
    if not inside or len(graph.inputs) != len(manifest.order) + len(manifest.constants):
        raise UsageError(f"the manifest of {path} does not fit its plan", do=_ANEW)
    for name, position in wanted:
        if name is not None and not _fits(graph.buffers.get(name), given[position]):
            raise UsageError(f"{path} has another {given[position].name} than its plan", do=_ANEW)


def _fits(buffer: Buffer | None, given: Held | TensorSpec) -> bool:
    if buffer is None or len(buffer.shape) != len(given.shape):
        return False
    alike = dtypes.torch_name(dtypes.to_torch(buffer.dtype)) == given.dtype
    sizes = zip(buffer.shape, given.shape)
    known = all(a == b for a, b in sizes if isinstance(a, int) and isinstance(b, int))
    return alike and known and torch.device(buffer.device) == torch.device(given.device)


def _tensors(reader: Reader, file: str | Path | None) -> list[torch.Tensor]:
    """Of each record; those of one number are one tensor."""
    manifest, made = reader.manifest, {}
    outside = _outside(reader, file)
    for record in manifest.held:
        if record.number not in made:
            tensor = weights.from_file(record, outside)
            tensor = weights.read(record, reader) if tensor is None else tensor
            if record.kind == "parameter":
                tensor = torch.nn.Parameter(tensor, requires_grad=False)
            made[record.number] = tensor
    return [made[record.number] for record in manifest.held]


def _outside(reader: Reader, file: str | Path | None) -> dict[str, torch.Tensor]:
    record = reader.manifest.weights
    if record is None:
        if file is not None:
            raise UsageError(f"{reader.path} has its weights inside", do="leave `weights` out")
        return {}
    path = Path(file) if file is not None else reader.path.resolve().parent / record.path
    return weights.read_file(path, record)


def _placed(module: torch.nn.Module, record: Held, tensor: torch.Tensor) -> tuple[dict, str]:
    """Puts `tensor` where the model had it; gives (the dict that holds it, its key there)."""
    *path, name = record.name.split(".")
    for step in path:
        if step not in module._modules:
            module.add_module(step, torch.nn.Module())
        module = module._modules[step]
    if record.kind == "parameter":
        module.register_parameter(name, tensor)
        return module._parameters, name
    module.register_buffer(name, tensor, persistent=record.kind == "buffer")
    return module._buffers, name
