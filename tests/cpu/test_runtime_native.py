"""The runtime's C++ on a stand-in for the CUDA driver (`recorded.py`)."""

from __future__ import annotations

import ctypes
import threading
from array import array
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import ClassVar

import pytest
import torch

from recorded import (
    launched_as,
    native_with_stand_in,
    no_new_parameters,
    parameters_of,
    recorded_in,
)
from torchweld.codegen.source import BufferArg, DescriptorArg, GridDim, KernelSource, SizeArg
from torchweld.core.errors import BuildError
from torchweld.core.options import Options
from torchweld.ir.size import symbol
from torchweld.runtime import native as native_module
from torchweld.runtime import recording, steps
from torchweld.runtime.cache import open_cache
from torchweld.runtime.copies import copy_source
from torchweld.runtime.dispatch import Pointer
from torchweld.runtime.launch_table import Handle, TileMap, launch_table
from torchweld.runtime.launcher import launch_plan
from torchweld.runtime.moved import Moved
from torchweld.runtime.native import watch

BYTES = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "*fp32": ctypes.c_uint64,
         "*i8": ctypes.c_uint64}  # fmt: skip


@pytest.fixture
def native(tmp_path_factory):
    return native_with_stand_in(tmp_path_factory.getbasetemp())


@dataclass
class Launched:
    """In place of a compiled kernel: what it was started with, through the table and by Python."""

    source: KernelSource
    maps: tuple[TileMap, ...] = ()
    early: bool = False
    by_table: list = field(default_factory=list)
    by_python: list = field(default_factory=list)

    def __post_init__(self) -> None:
        self._function = launched_as(self._started)
        parameters_of(self._function, self.sizes())

    def sizes(self) -> list[int]:
        found: list[int] = []
        for argument, kind in zip(self.source.args, self.source.signature):
            if isinstance(argument, DescriptorArg):
                rank = len(argument.shape)
                found += [128, *[4] * rank, *[8] * rank]
            else:
                found.append(ctypes.sizeof(BYTES[kind]))
        return [*found, 8, 8]

    def handle(self, device: int) -> Handle:
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        return Handle(address, 128, 4096, self.early, False, self.maps)

    def _started(self, config, parameters) -> int:
        told = config.contents
        kinds = {4: ctypes.c_int32, 8: ctypes.c_int64, 128: ctypes.c_int64 * 16}
        values = []
        for place, size in zip(range(len(self.sizes())), self.sizes()):
            value = kinds[size].from_address(parameters[place])
            values.append(list(value) if size == 128 else value.value)
        self.by_table.append((list(told.grid), told.block[0], told.shared, told.stream,
                              told.attribute_ids(), values))  # fmt: skip
        return 0

    def __call__(self, grid, stream, values, device, aligned) -> None:
        self.by_python.append((list(grid), stream, list(values), aligned))


def source(*args, signature, size=8) -> KernelSource:
    return KernelSource("triton", "k", "", args, (GridDim(size, 4),), signature=signature)


def stepped(native, plans, addresses, stream, monkeypatch):
    """`plans` launched as one step, with these addresses of buffers."""
    monkeypatch.setattr(steps, "raw_stream", lambda device: stream)
    bases = array("q", addresses)
    table = launch_table(plans, 0, native)
    steps.launch_all(table, native, 0)([], bases, bases.buffer_info()[0])


def test_kernels_of_a_table_are_launched_in_order_on_the_stream(native, monkeypatch):
    n, signature = symbol("n"), ("*fp32", "i32", "*fp32", "i64")
    args = BufferArg("a"), SizeArg(n), BufferArg("b"), SizeArg(-3)
    two = source(*args, signature=signature, size=n)
    kernels = [Launched(two), Launched(replace(two, early=True), early=True)]
    where = {"a": Pointer(0, 32), "b": Pointer(1)}.get
    plans = [launch_plan(two, k, where, {"n": 9}) for k in kernels]
    stepped(native, plans, [1 << 40, 4096], 77, monkeypatch)
    values = [(1 << 40) + 32, 9, 4096, -3, 0, 0]
    assert kernels[0].by_table == [([3, 1, 1], 128, 4096, 77, [], values)]
    assert kernels[1].by_table == [([3, 1, 1], 128, 4096, 77, [6], values)]


def test_descriptors_are_moved_to_the_address_of_the_call(native, monkeypatch):
    tiles = TileMap(element=9, swizzle=3, item_bytes=2, block=(64, 128))
    window = DescriptorArg("a", (300, 512), (1024, 1), (64, 128), offset=16)
    one = source(window, SizeArg(symbol("n")), signature=("bf16", "i32"))
    kernel = Launched(one, maps=(tiles,))
    plan = launch_plan(one, kernel, {"a": Pointer(0)}.get, {"n": 5})
    for address in (1 << 20, 3 << 20):
        stepped(native, [plan], [address], 0, monkeypatch)
        (*_, (described, *numbers)) = kernel.by_table[-1]
        assert described[:3] == [address + 32, 9, 2]
        assert described[3:5] == [512, 300] and described[8:10] == [128, 64]
        assert described[12] == 2048
        assert numbers == [300, 512, 1024, 1, 5, 0, 0]


@dataclass
class Whole:
    """A call of two inputs, of which the first stays where it is: twice that, and the second."""

    native: object
    static: torch.Tensor
    seen: list = field(default_factory=list)

    def made(self):
        target, fetch = torch.empty(3), itemgetter(0)
        view = self.native.window(1, lambda t, *layout: self.seen.append(layout), (1,), (2,), 3)
        steps = (
            self.native.new_tensor(2, lambda: target),
            self.native.call(torch.mul, (None, 2), (0,), (fetch,), itemgetter(2), ("out",)),
            lambda tensors, bases, address: self.seen.append((bases.tolist(), address)),
            lambda tensors, bases, address: view(tensors),
            self.native.drop((1,)),
        )
        layout = self.native.expect((1,), (1,), (torch.empty(2, 5, device="meta"),))
        bases = array("q", [self.static.data_ptr(), 0, 0])
        outputs = itemgetter(2), itemgetter(1), lambda tensors: len(tensors)
        watched = self.native.watch((self.static,))
        return self.native.call_of(
            (0,), (self.static,), watched, layout, [self.static, None, None], bases, steps, outputs
        )


def test_a_whole_call(native):
    static, moving = torch.randn(3), torch.randn(2, 5)
    whole = Whole(native, static)
    call = whole.made()
    for _ in range(2):
        args = [static, moving]
        result, dropped, count = call(args)
        assert args == [] and dropped is None and count == 3
        assert torch.equal(result, static * 2)
        (bases, address), layout = whole.seen[-2:]
        assert bases == [static.data_ptr(), moving.data_ptr(), result.data_ptr()]
        assert address and layout == ((1,), (2,), 3)


@pytest.mark.parametrize("change", ["another object", "moved", "layout", "no tensor"])
def test_a_whole_call_that_does_not_fit_does_nothing(native, change):
    static, moving = torch.randn(3), torch.randn(2, 5)
    whole = Whole(native, static)
    call, given = whole.made(), {"layout": moving.t(), "no tensor": 7}.get(change, moving)
    if change == "moved":
        static.data = torch.randn(3)
    args = [static.clone() if change == "another object" else static, given]
    kept = list(args)
    assert call(args) is None
    assert all(a is b for a, b in zip(args, kept)) and not whole.seen


def test_an_error_in_a_step_is_the_caller_s(native):
    def fails(*_):
        raise ValueError("of a step")

    watched = native.watch(())
    for steps_, error in [((fails,), ValueError), ((native.new_tensor(0, dict),), TypeError),
                          ((native.drop((5,)),), IndexError)]:  # fmt: skip
        call = native.call_of((), (), watched, None, [None], array("q", [0]), steps_, ())
        with pytest.raises(error):
            call([])
    with pytest.raises(ValueError, match="of a step"):
        native.call_of((), (), watched, None, [None], array("q", [0]), (), (fails,))([])


def test_a_kernel_whose_address_is_not_aligned_goes_through_python(native, monkeypatch):
    one = source(BufferArg("a"), signature=("*fp32",))
    kernels = [Launched(one) for _ in range(4)]
    pointers = [Pointer(0), Pointer(0, 4), Pointer(0, 8), Pointer(0, 16)]
    plans = [launch_plan(one, k, lambda name, p=p: p, {}) for k, p in zip(kernels, pointers)]
    stepped(native, plans, [4096], 5, monkeypatch)
    assert [len(k.by_table) for k in kernels] == [1, 0, 0, 1]
    assert [k.by_python for k in kernels[1:3]] == [
        [([2, 1, 1], 5, [4100], False)], [([2, 1, 1], 5, [4104], False)]
    ]  # fmt: skip


def test_a_kernel_with_other_parameters_goes_through_python(native, monkeypatch):
    one = source(BufferArg("a"), signature=("*fp32",))
    kernel = Launched(one)
    parameters_of(kernel._function, [8, 8, 8, 8])
    stepped(native, [launch_plan(one, kernel, lambda n: Pointer(0), {})], [64], 0, monkeypatch)
    assert not kernel.by_table and len(kernel.by_python) == 1


def changed_in_place(t):
    t.data.mul_(2)


def moved(t):
    t.data = t.data.clone()


def transposed(t):
    t.data = t.data.t()


def of_another_type(t):
    t.data = t.data.view(torch.int32).float()


def swapped(t):
    torch.utils.swap_tensors(t, torch.randn(3, 3))


@pytest.mark.parametrize(
    "change, stays", [(changed_in_place, True), (moved, False), (transposed, False),
                      (of_another_type, False), (swapped, False)],
)  # fmt: skip
def test_what_is_watched(native, change, stays):
    tensors = [torch.randn(3, 3) for _ in range(3)]
    watched = native.watch(tuple(tensors))
    assert native.unchanged(watched)
    change(tensors[1])
    assert native.unchanged(watched) is stays


def test_a_tensor_without_strides_always_counts_as_changed(native):
    assert not native.unchanged(native.watch((torch.eye(3).to_sparse(),)))


def test_places_in_dicts(native):
    a, b = object(), object()
    owner = {"x": a, "y": None}
    places, lengths = (owner, "x", a, owner, "y", None, owner, "z", None), (owner, 2)
    assert native.holds(places, lengths)
    owner["x"] = b
    assert not native.holds(places, lengths)
    owner["x"] = a
    owner["w"] = b
    assert not native.holds(places, lengths)
    del owner["w"]
    assert native.holds(places, lengths)
    owner["z"] = b
    del owner["y"]
    assert not native.holds(places, lengths)


def test_without_a_compiler_calls_go_through_python(monkeypatch):
    def refuse(artifacts):
        raise BuildError("no Python.h")

    monkeypatch.setattr(native_module, "native_library", refuse)
    assert native_module.native.__wrapped__(None) is None
    monkeypatch.setattr(native_module, "native", lambda artifacts: None)
    assert native_module.with_driver.__wrapped__(None) is None
    assert watch(Options(), (), (), []) is None


def test_no_driver_no_module_for_a_gpu():
    assert native_module.with_driver(open_cache(Options()), "no-such-library.so") is None


def test_inputs_are_placed_if_they_are_laid_out_as_expected(native):
    x, y = torch.randn(3, 5), torch.randn(4, dtype=torch.float64)
    expected = native.expect((2, 0), (1, 3), (x.to("meta"), y.to("meta")))
    tensors, bases = [None] * 4, array("q", [0] * 4)

    def place(given) -> bool:
        return native.place(expected, [y, 7, given], tensors, bases.buffer_info()[0])

    for other in (x.t(), x.double(), x[:2], x[:, ::2], torch.randn(1, 3, 5), 7, None):
        assert not place(other)
    assert place(torch.nn.Parameter(torch.randn(3, 5))) and place(x)
    assert tensors[1] is x and tensors[3] is y and tensors[::2] == [None, None]
    assert bases.tolist() == [0, x.data_ptr(), 0, y.data_ptr()]


def test_dicts_that_are_none_are_not_watched():
    scripted = torch.jit.trace(torch.nn.Linear(2, 2), torch.randn(1, 2))
    owner, tensors = scripted._parameters, list(scripted.parameters())
    assert watch(Options(), (owner, "weight", tensors[0]), (), tensors) is None
    assert watch(Options(), ({}, "weight", None), ({"a": 1}, 1), tensors)()


@pytest.mark.parametrize(
    "tensor",
    [torch.randn(5, 7), torch.randn(7, 5).t(), torch.randn(9, 8)[:, :5], torch.randn(()),
     torch.randn(0, 3), torch.arange(6), torch.randn(4, 1).expand(4, 6), torch.randn(2, 3)[1:, 1:]],
)  # fmt: skip
def test_copies_around_a_replay(native, tensor):
    started = []
    graph = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: started.append(1) or 0)
    handle = ctypes.cast(graph, ctypes.c_void_p).value
    target = torch.zeros_like(tensor).as_strided(tensor.shape, tensor.stride()) \
        if 0 in tensor.stride() else torch.empty_strided(tensor.shape, tensor.stride(),
                                                         dtype=tensor.dtype)  # fmt: skip
    recorded = native.recorded(handle, [target], 0, 0, [], 0, 0)
    assert native.replay(recorded, 0, [tensor], [])
    assert started == [1] and torch.equal(target, tensor)


def test_copies_by_one_kernel(native):
    """And by the driver, where an address is not aligned."""
    pairs = [(torch.zeros(n, dtype=torch.uint8), torch.arange(n, dtype=torch.uint8))
             for n in (64, 33, 0)]  # fmt: skip
    source = copy_source(3, vectors=False)
    kernel, slots = Launched(source), dict(zip([a.buffer for a in source.args[:6]], range(6)))
    known = {"n0": 64, "n1": 33, "n2": 0, "most": 64}
    plan = launch_plan(source, kernel, lambda name: Pointer(slots[name]), known)
    row = launch_table([plan], 0, native)
    graph = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
    handle = ctypes.cast(graph, ctypes.c_void_p).value
    for offset in (0, 1):
        targets, sources = ([t[offset:] for t in tensors] for tensors in zip(*pairs))
        recorded = native.recorded(handle, targets, row.address, 0, [], 0, 0)
        assert native.replay(recorded, 0, sources, [])
    ((grid, *_, values),) = kernel.by_table
    assert grid == [1, 3, 1]
    assert values[:4] == [t.data_ptr() for pair in pairs[:2] for t in pair]
    assert values[6:9] == [64, 33, 0]
    assert all(torch.equal(t[1:], s[1:]) for t, s in pairs)  # by the driver


class Copying(Launched):
    """Of one tensor, by a kernel that copies. `runs`: of all."""

    runs: ClassVar[list] = []

    def _started(self, config, parameters) -> int:
        super()._started(config, parameters)
        self.runs.append(self.by_table[-1][-1][0])
        ctypes.memmove(*self.by_table[-1][-1][:3])
        return 0


def copying(tensors, native):
    source, size = copy_source(1, vectors=False), tensors[0].nbytes
    slots = {"target0": Pointer(0), "source0": Pointer(1)}
    plan = launch_plan(source, Copying(source), slots.__getitem__, {"n0": size, "most": size})
    return launch_table([plan], 0, native)


class Doubling:
    """A graph of one kernel."""

    kept: ClassVar[list] = []  # another at the same address would get its nodes

    def __init__(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.kept.append(self)
        self.steps = []
        self._run = ctypes.CFUNCTYPE(ctypes.c_int)(self._started)
        self._source, self._target = source, target
        self.raw_cuda_graph_exec = self.raw_cuda_graph

    def _started(self) -> int:
        self._target.copy_(2 * self._source)
        return 0

    def raw_cuda_graph(self) -> int:
        return ctypes.cast(self._run, ctypes.c_void_p).value

    def instantiate(self) -> None:
        self.steps.append("instantiated")


def test_copies_are_nodes_of_the_graph(native, monkeypatch):
    monkeypatch.setattr(recording, "copy_table", copying)
    buffer, made = torch.zeros(4, 6), torch.zeros(4, 6)
    graph = Doubling(buffer, made)
    launch = recording.Launch(graph, [buffer], [made], native)
    assert graph.steps == ["instantiated"]
    x = torch.randn(4, 6)
    shifted = torch.empty(25)[1:].view(4, 6).copy_(x)  # an address that the kernel does not take
    for given in (x, shifted, x.t().contiguous().t()):
        result = torch.zeros(4, 6)
        assert launch(0, [given], [result]) and torch.equal(result, 2 * x)
        assert Copying.runs[-2:] == [buffer.data_ptr(), result.data_ptr()]
        buffer.zero_(), made.zero_()
    for other in (x[:3], x.double()):
        assert not launch(0, [other], [result]) and not made.any()


def recorded_copies(native, slots: list[tuple[int, int]]):
    """A graph of kernels that copy 96 bytes from one slot to another, its table, and the addresses
    and tensors of slots as it was recorded."""
    tensors = [torch.zeros(4, 6) for _ in range(4)]
    bases = array("q", [t.data_ptr() for t in tensors])
    graph, source = Doubling(torch.zeros(1), torch.zeros(1)), copy_source(1, vectors=False)
    kernel, known = Copying(source), {"n0": 96, "most": 96}
    names = [{"target0": Pointer(to), "source0": Pointer(start)} for start, to in slots]
    table = launch_table([launch_plan(source, kernel, n.__getitem__, known) for n in names], 0,
                         native)  # fmt: skip
    with recorded_in(graph.raw_cuda_graph()):
        native.launch(table.address, 0, len(slots), bases.buffer_info()[0], 0)
    return graph, table, bases, tensors


def test_kernels_of_a_graph_are_found(native):
    graph, table, bases, _ = recorded_copies(native, [(0, 1), (1, 2), (0, 1)])
    told = (table.address, 3)
    address = bases.buffer_info()[0]
    found = native.find(graph.raw_cuda_graph(), told, address)
    rows, nodes = found[::2], found[1::2]
    assert rows[0] == table.address and len(set(rows)) == 3
    assert len(set(nodes)) == 3 and all(nodes)  # alike, but each its own
    bases[1] += 16
    assert native.find(graph.raw_cuda_graph(), told, address)[1::2] == [0, 0, 0]
    other = Doubling(torch.zeros(1), torch.zeros(1)).raw_cuda_graph()
    assert native.find(other, told, address)[1::2] == [0, 0, 0]


def test_kernels_read_and_write_where_a_caller_has_it(native):
    graph, table, bases, (_, between, *_) = recorded_copies(native, [(0, 1), (1, 2)])
    found = native.find(graph.raw_cuda_graph(), (table.address, 2), bases.buffer_info()[0])
    launch = recording.Launch(graph, [], [], native)
    moved = Moved({0: 0}, {0: 2}, tuple(found))
    launch.move(moved, bases, [torch.empty(4, 6)])
    for _ in range(3):
        x, result = torch.randn(4, 6), torch.zeros(4, 6)
        assert launch(0, [x], [result]) and torch.equal(result, x) and torch.equal(between, x)
    shifted = torch.empty(25)[1:].view(4, 6).copy_(x + 1)  # no multiple of 16 bytes
    for given in (shifted, (x + 1).t().contiguous().t()):
        result.zero_()
        assert launch(0, [given], [result]) and torch.equal(result, x + 1)
    for other in (x[:3], x.double()):
        assert not launch(0, [other], [result])


def test_a_driver_that_sets_no_recorded_kernel(native):
    graph, table, bases, _ = recorded_copies(native, [(0, 1)])
    found = native.find(graph.raw_cuda_graph(), (table.address, 1), bases.buffer_info()[0])
    launch = recording.Launch(graph, [], [], native)
    with no_new_parameters(), pytest.raises(recording.Refused):
        launch.move(Moved({0: 0}, {0: 1}, tuple(found)), bases, [torch.empty(4, 6)])


def test_no_replay_of_inputs_laid_out_otherwise(native):
    x = torch.randn(4, 6)
    recorded = native.recorded(0, [torch.empty(4, 6)], 0, 0, [], 0, 0)
    for other in (x.t(), x.double(), x[:3], x[:, :5]):
        assert native.replay(recorded, 0, [other], []) is False


def test_handed_out_tensors_are_counted_until_their_storages_go(native):
    tensors = [torch.randn(3, 4).t(), torch.randn(5).bfloat16(), torch.zeros(0), torch.randn(())]
    given, counted = native.hand_out(tensors)
    for t, g in zip(tensors, given):
        assert g.data_ptr() == t.data_ptr() and torch.equal(g, t) and g.stride() == t.stride()
        assert g.untyped_storage()._cdata != t.untyped_storage()._cdata
    assert native.in_use(counted)
    view = given[0][1:]
    del given, g
    assert native.in_use(counted)
    del view
    assert not native.in_use(counted)


def test_handed_out_memory_outlives_the_tensor_that_it_was(native):
    tensor = torch.full((1000,), 3.0)
    (given,), counted = native.hand_out([tensor])
    del tensor
    assert (given == 3).all()
    thread = threading.Thread(target=lambda box: box.clear(), args=([given],))
    del given
    thread.start()
    thread.join()
    assert not native.in_use(counted)
    assert native.hand_out([])[0] == []
