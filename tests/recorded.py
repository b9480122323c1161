"""Stand-ins for CUDA graphs and the CUDA driver, on the CPU.

A stand-in graph writes what a replay makes to the memory that its recording took, as a graph does.
The stand-in driver copies memory of the host, and calls Python functions in place of kernels and
graphs: their handles are addresses of C callbacks.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from torchweld.runtime import graph_domain, graphs
from torchweld.runtime import load as loading
from torchweld.runtime.build import find_compiler
from torchweld.runtime.cache import Artifacts
from torchweld.runtime.graphs import GraphedProgram
from torchweld.runtime.native import with_driver
from torchweld.runtime.program import Program

_DRIVER = r"""
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>
struct Config {
  unsigned grid[3], block[3], shared;
  void *stream, *attributes;
  unsigned count;
};
extern "C" {
static void* recording;  // a graph, or none
void record(void* graph, const Config* config, void* function, void** values);
int cuLaunchKernelEx(const Config* config, void* f, void** parameters, void**) {
  if (recording) return record(recording, config, f, parameters), 0;
  return ((int (*)(const Config*, void**))f)(config, parameters);
}
void begin(void* graph) { recording = graph; }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void*) {
  memcpy((void*)to, (void*)from, bytes);
  return 0;
}
static std::map<void*, std::vector<size_t>> parameters;
struct KernelNode {
  void* function;
  unsigned grid[3], block[3], shared;
  void** parameters;
};
struct Node {
  void* function;
  bool last;
  std::vector<std::vector<char>> values;
  std::vector<void*> places = {};
  unsigned grid[3] = {};
  int run() {
    std::vector<void*> places;
    for (auto& value : values) places.push_back(value.data());
    Config config = {};
    return ((int (*)(const Config*, void**))function)(&config, places.data());
  }
};
static std::map<void*, std::vector<Node*>> joined, recorded;
int cuGraphGetNodes(void* graph, void** nodes, size_t* count) {
  *count = 1;
  if (nodes) nodes[0] = graph;
  for (Node* node : recorded[graph]) {
    if (nodes) nodes[*count] = node;
    ++*count;
  }
  return 0;
}
int cuGraphGetRootNodes(void* graph, void** nodes, size_t* count) {
  if (!nodes) joined.erase(graph);  // of an earlier one at the same address
  return cuGraphGetNodes(graph, nodes, count);
}
static bool is_recorded(void* node) {
  for (auto& [graph, nodes] : recorded)
    for (Node* other : nodes) if (other == node) return true;
  return false;
}
int cuGraphNodeGetType(void* node, int* type) { *type = !is_recorded(node); return 0; }
int cuGraphKernelNodeGetParams_v2(Node* node, KernelNode* kernel) {
  node->places.clear();
  for (auto& value : node->values) node->places.push_back(value.data());
  *kernel = {node->function, {node->grid[0], node->grid[1], node->grid[2]}, {}, 0,
             node->places.data()};
  return 0;
}
static bool refuses;
void refuse(bool on) { refuses = on; }
int cuGraphNodeGetDependentNodes_v2(void*, void**, void*, size_t* count) { return *count = 0; }
int cuGraphAddKernelNode_v2(Node** node, void* graph, void* const*, size_t after,
                            const KernelNode* kernel) {
  *node = new Node{kernel->function, after > 0, {}};
  joined[graph].push_back(*node);
  return 0;
}
int cuGraphDestroyNode(void*) { return 1; }
int cuGraphAddDependencies(void*, void* const*, void* const*, size_t) { return 0; }
static void set(Node* node, const KernelNode* kernel) {
  node->values.clear();
  for (size_t i = 0; i < parameters[node->function].size(); ++i) {
    const char* value = (const char*)kernel->parameters[i];
    node->values.emplace_back(value, value + parameters[node->function][i]);
  }
}
int cuGraphExecKernelNodeSetParams_v2(void*, Node* node, const KernelNode* kernel) {
  if (refuses) return 1;
  set(node, kernel);
  return 0;
}
void record(void* graph, const Config* config, void* function, void** values) {
  auto* grid = config->grid;
  KernelNode kernel = {function, {grid[0], grid[1], grid[2]}, {}, 0, values};
  Node* node = new Node{function, false, {}};
  memcpy(node->grid, config->grid, sizeof node->grid);
  set(node, &kernel);
  recorded[graph].push_back(node);
}
int cuGraphLaunch(void* graph, void*) {
  int failed = 0;
  for (Node* node : joined[graph]) if (!node->last) failed |= node->run();
  for (Node* node : recorded[graph]) failed |= node->run();
  failed |= ((int (*)())graph)();
  for (Node* node : joined[graph]) if (node->last) failed |= node->run();
  return failed;
}
void describe(void* function, const size_t* bytes, size_t count) {
  parameters[function].assign(bytes, bytes + count);
}
int cuFuncGetParamInfo(void* function, size_t index, size_t*, size_t* bytes) {
  if (index >= parameters[function].size()) return 1;
  *bytes = parameters[function][index];
  return 0;
}
int cuTensorMapEncodeTiled(uint64_t* map, int type, uint32_t rank, void* at, const uint64_t* shape,
                           const uint64_t* strides, const uint32_t* box, const uint32_t*, int, int,
                           int, int) {
  memset(map, 0, 128);
  map[0] = (uint64_t)at, map[1] = type, map[2] = rank;
  for (uint32_t i = 0; i < rank; ++i) map[3 + i] = shape[i], map[8 + i] = box[i];
  for (uint32_t i = 0; i + 1 < rank; ++i) map[12 + i] = strides[i];
  return 0;
}
int cuTensorMapReplaceAddress(uint64_t* map, void* at) { map[0] = (uint64_t)at; return 0; }
}
"""


@cache
def native_with_stand_in(folder: Path):
    """The runtime's own C++ on the stand-in driver, apart from the one that has the real driver."""
    source, library = folder / "driver.cpp", folder / "driver.so"
    source.write_text(_DRIVER)
    subprocess.run(
        [find_compiler(), "-shared", "-fPIC", str(source), "-o", str(library)], check=True
    )
    _library.append(ctypes.CDLL(str(library)))
    return with_driver(Artifacts(folder), str(library))


_library: list[ctypes.CDLL] = []


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_size_t), ("attributes", ctypes.c_size_t), ("count", ctypes.c_uint),
    )  # fmt: skip

    def attribute_ids(self) -> list[int]:
        """Of the attributes that are on: 72 bytes each, a number and after 8 bytes its value."""
        places = [self.attributes + 72 * i for i in range(self.count)]
        assert all(ctypes.c_int.from_address(place + 8).value == 1 for place in places)
        return [ctypes.c_int.from_address(place).value for place in places]


def launched_as(function: Callable):
    """A kernel's handle: `function(config, addresses of the parameters)` gives 0."""
    addresses = ctypes.POINTER(ctypes.c_void_p)
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Config), addresses)(function)


@contextmanager
def recorded_in(graph: int) -> Iterator[None]:
    """Kernels that are launched inside become part of a graph."""
    _library[0].begin(ctypes.c_void_p(graph))
    try:
        yield
    finally:
        _library[0].begin(None)


@contextmanager
def no_new_parameters() -> Iterator[None]:
    """Inside, the driver sets no kernel of a graph."""
    _library[0].refuse(True)
    try:
        yield
    finally:
        _library[0].refuse(False)


def parameters_of(function, sizes: list[int]) -> None:
    """Tells the driver the bytes of a kernel's parameters."""
    numbers = (ctypes.c_size_t * len(sizes))(*sizes)
    _library[0].describe(ctypes.cast(function, ctypes.c_void_p), numbers, len(sizes))


class Replays:
    """In place of torch.cuda.CUDAGraph. It holds no input, as a graph does not."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.count, self._kept = 0, keep_graph
        self._launched = ctypes.CFUNCTYPE(ctypes.c_int)(self._launch)
        self._error: Exception | None = None

    def record(self, program: Program, arenas, args: list, run_head: Callable):
        self.program, self.arenas, self._run_head = program, arenas, run_head
        self.places = [(_Alias(a) if isinstance(a, torch.Tensor) else a) for a in args]
        paused = run_head(program, arenas, list(args))
        placement = program.loaded.placement
        made = [n for n, k in placement.kinds.items() if k in ("output", "extern")]
        slots = [placement.slots[n] for n in made]
        self.memory = [(s, paused.tensors[s]) for s in slots if paused.tensors[s] is not None]
        return paused

    def raw_cuda_graph(self) -> int:
        assert self._kept
        return self.raw_cuda_graph_exec()

    def instantiate(self) -> None:
        assert self._kept

    def raw_cuda_graph_exec(self) -> int:
        return ctypes.cast(self._launched, ctypes.c_void_p).value

    def _launch(self) -> int:
        self.replay()
        return 0

    def replay(self) -> None:
        self.count += 1
        args = [p.tensor() if isinstance(p, _Alias) else p for p in self.places]
        again = self._run_head(self.program, self.arenas, args)
        for slot, memory in self.memory:
            memory.copy_(again.tensors[slot])


class _Alias:
    """Memory by its address alone."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._address, self._layout = tensor.data_ptr(), (tensor.shape, tensor.stride())
        self._dtype, self._bytes = tensor.dtype, tensor.untyped_storage().nbytes()
        self._bytes -= tensor.storage_offset() * tensor.itemsize

    def tensor(self) -> torch.Tensor:
        if not self._bytes or 0 in self._layout[0]:
            return torch.empty_strided(*self._layout, dtype=self._dtype)
        raw = (ctypes.c_uint8 * self._bytes).from_address(self._address)
        flat = torch.frombuffer(raw, dtype=self._dtype, count=self._bytes // self._dtype.itemsize)
        return flat.as_strided(*self._layout)


def record_on_cpu(monkeypatch, native=None) -> list[Replays]:
    """Every program that is loaded from now on is replayed; the list of recordings."""
    domain = graph_domain.Domain(torch.device("cpu"), None)
    recordings: list[Replays] = []
    current: list[Replays] = []
    original = Program.run_head

    @contextmanager
    def capture(recording, domain, draws, shared) -> Iterator[None]:
        recordings.append(recording)
        current.append(recording)
        try:
            yield
        finally:
            current.pop()

    def run_head(self, arenas, args):
        return current[-1].record(self, arenas, args, original)

    def with_graph(program, kind, wanted, loose):
        program._loaded = replace(program.loaded, native=native)
        return GraphedProgram(program, kind, loose)

    monkeypatch.setattr(Program, "run_head", run_head)
    monkeypatch.setattr(graph_domain, "capture", capture)
    monkeypatch.setattr(graph_domain, "domain_of", lambda device: domain)
    monkeypatch.setattr(graph_domain.Domain, "current_stream", lambda self: 0)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Replays)
    monkeypatch.setattr(graphs, "is_capturing", lambda: False)
    monkeypatch.setattr(graphs, "current_gpu", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(loading, "with_graph", with_graph)
    return recordings
