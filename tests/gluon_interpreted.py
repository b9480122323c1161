"""Runs the text of Gluon product kernels on a CPU: warps that have roles of their own take turns at
random, copies and products happen as late as they may, barriers are those of the hardware.

What memory holds before a copy has come is NaN; a barrier that too many arrive at is an error, and
so is a kernel in which all wait. Layouts mean nothing here."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace

import torch

from product_check import problems
from torchweld.codegen.gluon.names import GRID_CONTROL, HEADER
from torchweld.codegen.source import BufferArg, DescriptorArg, KernelSource
from torchweld.ir.size import evaluate
from torchweld.runtime.launcher import grid_of
from triton_cases import Case
from triton_cases import tensors as tensors_of

_DTYPES = {n: getattr(torch, n) for n in ("bfloat16", "float16", "float32", "int32", "int64")}
_DTYPES["int1"] = torch.bool


class Deadlock(AssertionError):
    pass


class Task:
    """One role: a thread that runs while it is told to."""

    def __init__(self, scheduler: Scheduler, run: Callable[[], None]) -> None:
        self.scheduler, self.ready = scheduler, lambda: True
        self.go, self.done, self.error = threading.Semaphore(0), False, None
        self.products: list[Callable[[], None]] = []
        self.stores: list[Callable[[], None]] = []
        self.loaded: set[int] = set()  # slots in shared memory, since the last fence
        self.thread = threading.Thread(target=self._main, args=(run,), daemon=True)
        self.thread.start()

    def _main(self, run) -> None:
        self.go.acquire()
        try:
            run()
        except BaseException as error:
            self.error = error
        self.done = True
        self.scheduler.back.release()

    def pause(self, until: Callable[[], bool] = lambda: True) -> None:
        self.ready = until
        self.scheduler.back.release()
        self.go.acquire()


class Scheduler:
    """Lets one task or one copy under way go on at a time; with odd seeds, copies only where no
    task can."""

    def __init__(self, seed: int) -> None:
        self.random, self.back = random.Random(seed), threading.Semaphore(0)
        self.copies_late = seed % 2 == 1
        self.copies: list[Callable[[], None]] = []
        self.tasks: list[Task] = []
        self.now: Task | None = None

    def run(self, roles: list[Callable[[], None]]) -> None:
        self.tasks = [Task(self, role) for role in roles]
        while not all(t.done for t in self.tasks):
            able = [t for t in self.tasks if not t.done and t.ready()]
            stores = [t for t in self.tasks if t.stores]
            choices = [*able, *stores]
            if self.copies and not (choices and self.copies_late):
                choices.append(None)
            if not choices:
                raise Deadlock("all wait")
            chosen = self.random.choice(choices)
            if chosen is None:
                self.copies.pop(self.random.randrange(len(self.copies)))()
            elif chosen in able:
                self._resume(chosen)
            else:
                chosen.stores.pop(0)()

    def _resume(self, task: Task) -> None:
        self.now = task
        task.go.release()
        self.back.acquire()
        if task.error is not None:
            raise task.error


@dataclass
class Barrier:
    """Of `count` arrivals in each phase, and the bytes that they expect."""

    phase: int = 0
    count: int = 1
    arrived: int = 0
    missing: int = 0

    def arrive(self, missing: int = 0) -> None:
        assert self.arrived < self.count, "an arrival too many in one phase"
        self.arrived += 1
        self.missing += missing
        self.check()

    def check(self) -> None:
        if self.arrived == self.count and self.missing == 0:
            self.phase, self.arrived = self.phase + 1, 0


class Slots:
    """Tiles in shared memory; also one of them, or a view of one."""

    def __init__(self, tensor: torch.Tensor, scheduler: Scheduler) -> None:
        self.tensor, self.scheduler = tensor, scheduler

    def index(self, number: int) -> Slots:
        return Slots(self.tensor[int(number)], self.scheduler)

    def slice(self, start: int, length: int, dimension: int) -> Slots:
        return Slots(self.tensor.narrow(dimension, start, length), self.scheduler)

    def permute(self, order) -> Slots:
        return Slots(self.tensor.permute(order), self.scheduler)

    def reshape(self, shape) -> Slots:
        return Slots(self.tensor.view(shape), self.scheduler)

    def store(self, value: torch.Tensor) -> None:
        self.tensor.copy_(value)

    def load(self, layout) -> torch.Tensor:
        self.scheduler.now.loaded.add(self.tensor.data_ptr())
        return self.tensor.clone()


@dataclass(frozen=True)
class Descriptor:
    tensor: torch.Tensor
    block: tuple[int, ...]
    layout: None = None

    def read(self, corner) -> torch.Tensor:
        inside, within = self._cut(corner)
        tile = torch.zeros(self.block, dtype=self.tensor.dtype)
        tile[within] = self.tensor[inside]
        return tile

    def write(self, corner, tile: torch.Tensor) -> None:
        """As the hardware does: a row ends at a multiple of 16 bytes, in memory that may be
        another's."""
        lanes = 16 // self.tensor.element_size()
        *outer, columns = self.tensor.shape
        inside, within = self._cut(corner, (*outer, -(-columns // lanes) * lanes))
        places = self.tensor.storage_offset()
        for d, (along, stride) in enumerate(zip(inside, self.tensor.stride())):
            step = torch.arange(along.start, along.stop) * stride
            places = places + step.view(-1, *[1] * (self.tensor.dim() - 1 - d))
        memory = self.tensor.as_strided((self.tensor.untyped_storage().nbytes()
                                         // self.tensor.element_size(),), (1,), 0)  # fmt: skip
        room = places < len(memory)
        memory[places[room]] = tile[within][room]

    def _cut(self, corner, shape: tuple[int, ...] | None = None):
        """What of the tensor a tile covers, and where in the tile that is."""
        starts = [int(c) for c in corner]
        ends = [min(c + b, e) for c, b, e in zip(starts, self.block, shape or self.tensor.shape)]
        inside = [slice(max(0, c), max(0, c, e)) for c, e in zip(starts, ends)]
        within = tuple(slice(s.start - c, s.stop - c) for c, s in zip(starts, inside))
        return tuple(inside), within


@dataclass(frozen=True)
class Pointer:
    memory: torch.Tensor  # flat
    offset: torch.Tensor | int = 0

    def __add__(self, more) -> Pointer:
        return Pointer(self.memory, self.offset + more)


@dataclass
class Machine:
    """The names that a kernel's text uses, for one program."""

    program: tuple[int, int, int]
    programs: tuple[int, int, int]
    scheduler: Scheduler
    barriers: list[Barrier] = field(default_factory=list)

    def names(self) -> dict:
        gl = SimpleNamespace(
            constexpr=lambda x=None: x, program_id=self.program.__getitem__,
            num_programs=self.programs.__getitem__, static_range=range,
            zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype),
            full=lambda shape, value, dtype, layout=None: torch.full(shape, value, dtype=dtype),
            arange=lambda start, end, layout: torch.arange(start, end),
            SliceLayout=lambda *_: None, BlockedLayout=lambda *_: None,
            DotOperandLayout=lambda *_: None, NVMMADistributedLayout=lambda **_: None,
            convert_layout=lambda x, *_, **__: x, sum=lambda x, axis: x.sum(axis),
            reduce=lambda x, axis, largest: x.amax(axis),
            allocate_shared_memory=self.allocate, warp_specialize=self.specialize, **_DTYPES,
        )  # fmt: skip
        tl = SimpleNamespace(
            load=_load, store=_store, atomic_add=_atomic_add, sum=torch.sum,
            where=_where, abs=torch.abs, exp=torch.exp,
            erf=torch.erf, rsqrt=torch.rsqrt, log=torch.log, cdiv=lambda a, b: -(-a // b),
            minimum=min, maximum=_maximum, broadcast_to=lambda x, shape: x.broadcast_to(shape),
            PropagateNan=SimpleNamespace(ALL=None), **_DTYPES,
        )  # fmt: skip
        libdevice = SimpleNamespace(
            exp=torch.exp, log=torch.log, div_rn=torch.div, mul_rn=torch.mul,
            rcp_rn=torch.reciprocal, copysign=torch.copysign,
        )  # fmt: skip
        mbarrier = SimpleNamespace(
            MBarrierLayout=lambda: "barriers", init=self.init, wait=self.wait,
            expect=self.expect, arrive=self.arrive,
        )  # fmt: skip
        return {
            "inverse": torch.reciprocal, "exp_flushed": torch.exp,
            "exp2_flushed": torch.exp2, "gl": gl, "tl": tl,
            "libdevice": libdevice, "mbarrier": mbarrier,
            "tma": SimpleNamespace(store_wait=self.store_wait), "copy_in": self.copy_in,
            "begin_next": lambda: None, "await_previous": lambda: None,
            "synchronize": lambda: None,
            "copy_out": self.copy_out, "warpgroup_mma": self.multiply,
            "warpgroup_mma_wait": self.multiply_wait, "fence_async_shared": self.fence,
        }  # fmt: skip

    def allocate(self, dtype, shape, layout):
        if layout == "barriers":
            made = [Barrier() for _ in range(shape[0])]
            return SimpleNamespace(index=lambda i: made[int(i)])
        return Slots(torch.full(shape, float("nan"), dtype=dtype), self.scheduler)

    def fence(self) -> None:
        self.scheduler.now.loaded.clear()

    def init(self, barrier: Barrier, count: int) -> None:
        barrier.count = count

    def specialize(self, roles, warps, registers) -> None:
        assert len(warps) == len(registers) == len(roles) - 1
        self.scheduler.run([lambda f=f, a=a: f(*a) for f, a in roles])

    def wait(self, barrier: Barrier, parity: int) -> None:
        self.scheduler.now.pause(lambda: barrier.phase & 1 != int(parity))

    def expect(self, barrier: Barrier, count: int) -> None:
        barrier.arrive(count)

    def arrive(self, barrier: Barrier, count: int, pred=True) -> None:
        if pred:
            barrier.arrive()
        self.scheduler.now.pause()

    def copy_in(self, source: Descriptor, corner, barrier: Barrier, slot: Slots) -> None:
        read = any(slot.tensor.data_ptr() in task.loaded for task in self.scheduler.tasks)
        assert not read, "a copy may overtake loads: there was no fence after them"
        slot.tensor.fill_(float("nan"))

        def complete() -> None:
            tile = source.read(corner)
            slot.tensor.copy_(tile)
            barrier.missing -= tile.numel() * tile.element_size()
            barrier.check()

        self.scheduler.copies.append(complete)
        self.scheduler.now.pause()

    def copy_out(self, target: Descriptor, corner, slot: Slots) -> None:
        task = self.scheduler.now
        task.stores.append(lambda: target.write(corner, slot.tensor))
        task.pause()

    def store_wait(self, pending: int) -> None:
        task = self.scheduler.now
        task.pause(lambda: len(task.stores) <= pending)

    def multiply(
        self, left: Slots | torch.Tensor, right: Slots, acc, is_async: bool, use_acc: bool = True
    ):
        def complete() -> None:
            factor = left.tensor if isinstance(left, Slots) else left  # or it is in registers
            made = factor.float() @ right.tensor.float()
            acc.copy_(acc + made if use_acc else made)

        self.scheduler.now.products.append(complete)
        return acc

    def multiply_wait(self, pending: int, deps):
        task = self.scheduler.now
        task.pause()
        while len(task.products) > pending:
            task.products.pop(0)()
        return deps[0] if len(deps) == 1 else deps


def interpret(
    source: KernelSource, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int], seed=0
) -> None:
    """Every program of a Gluon source, one after the other."""
    text = source.text.removeprefix(HEADER).removeprefix(GRID_CONTROL)
    text = text.replace("@gluon.jit\n", "").replace("@triton.jit\n", "")
    text = re.sub(r"\b(row|column|at_\w+)\.to\(tl\.int64\)", r"\1", text)  # plain numbers here
    arguments = [_argument(a, tensors, sizes) for a in source.args]
    programs = grid_of(source.grid, sizes)
    for number, program in enumerate(product(*map(range, programs))):
        names = Machine(program, programs, Scheduler(seed + number)).names()
        exec(text, names)
        names["halves"] = lambda tile, _: tile.clone().chunk(2, 1)
        names[source.name](*arguments)


def fails(case: Case, source: KernelSource, seed: int) -> bool:
    """Whether a kernel of `case` waits for ever, trips over a barrier, or gives a wrong result."""
    made = tensors_of(case)
    try:
        interpret(source, made, case.sizes, seed)
    except AssertionError:
        return True
    return problems(case, made) != []


def _argument(argument, tensors, sizes):
    if isinstance(argument, DescriptorArg):
        shape, strides = ([evaluate(s, sizes) for s in part]
                          for part in (argument.shape, argument.strides))  # fmt: skip
        tensor = tensors[argument.buffer]
        start = tensor.storage_offset() + evaluate(argument.offset, sizes)
        return Descriptor(tensor.as_strided(shape, strides, start), argument.block)
    if isinstance(argument, BufferArg):
        tensor = tensors[argument.buffer]
        span = 1 + sum((e - 1) * s for e, s in zip(tensor.shape, tensor.stride()))
        return Pointer(tensor.as_strided((span,), (1,)))
    return torch.tensor(evaluate(argument.size, sizes))


def _load(pointer: Pointer, mask=True, other=0, **cache) -> torch.Tensor:
    offset, mask = torch.broadcast_tensors(torch.as_tensor(pointer.offset), torch.as_tensor(mask))
    found = pointer.memory[torch.where(mask, offset, 0)]
    return torch.where(mask, found, torch.tensor(other, dtype=found.dtype))


def _where(test, yes, no) -> torch.Tensor:
    return torch.where(torch.as_tensor(test), yes, no)


def _maximum(a, b, propagate_nan=None):
    return torch.maximum(a, b) if isinstance(a, torch.Tensor) else max(a, b)


def _atomic_add(pointer: Pointer, value: int) -> torch.Tensor:
    before = pointer.memory[pointer.offset].clone()
    pointer.memory[pointer.offset] += value
    return before


def _store(pointer: Pointer, value, mask=True) -> None:
    offset, value, mask = torch.broadcast_tensors(
        *map(torch.as_tensor, (pointer.offset, value, mask))
    )
    pointer.memory[offset[mask]] = value[mask].to(pointer.memory.dtype)
