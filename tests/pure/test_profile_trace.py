"""A trace as torch.profiler writes it on a GPU, cut to a few events: who launched what, and what
is found of it."""

from __future__ import annotations

import json

import pytest

from torchweld.core.errors import UsageError
from torchweld.observe.measure.match import match_names, match_operators
from torchweld.observe.measure.trace import STEP, read_trace, walk


def event(cat, name, ts, dur, tid=1, pid=7, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": pid, "tid": tid,
            "args": args}


def device(cat, name, ts, dur, correlation):
    return event(cat, name, ts, dur, tid=7, pid=0, correlation=correlation)


EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}},
    event("user_annotation", STEP, 100, 90),
    event("cpu_op", "aten::linear", 110, 30),
    event("cpu_op", "aten::t", 111, 2),
    event("cpu_op", "aten::addmm", 115, 20),
    event("cuda_runtime", "cudaLaunchKernel", 120, 3, correlation=1),
    event("cuda_runtime", "cudaLaunchKernel", 124, 3, correlation=2),
    event("cpu_op", "aten::gelu", 145, 10),
    event("cuda_runtime", "cudaLaunchKernel", 148, 3, correlation=3),
    event("cpu_op", "aten::mm", 160, 10, tid=2),  # the backward has a thread of its own
    event("cuda_driver", "cuLaunchKernelEx", 163, 3, tid=2, correlation=4),
    device("kernel", "splitK", 130, 5, 1),
    device("kernel", "gemm", 136, 14, 2),
    device("kernel", "gelu_kernel", 152, 6, 3),
    device("kernel", "gemm", 170, 9, 4),
    device("gpu_memcpy", "Memcpy HtoD", 182, 2, 5),
    event("user_annotation", STEP, 200, 50),
    event("cpu_op", "aten::gelu", 210, 10),
    event("cuda_runtime", "cudaLaunchKernel", 212, 3, correlation=6),
    device("kernel", "gelu_kernel", 220, 7, 6),
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": EVENTS}))
    return path


def test_steps_have_their_kernels_in_order(path):
    first, second = read_trace(path).steps
    assert [(k.name, k.start_us, k.duration_us, k.copy) for k in first.kernels] == [
        ("splitK", 130, 5, False), ("gemm", 136, 14, False), ("gelu_kernel", 152, 6, False),
        ("gemm", 170, 9, False), ("Memcpy HtoD", 182, 2, True)]
    assert [k.duration_us for k in second.kernels] == [7]
    assert (first.duration_us, second.duration_us) == (90, 50)


def test_kernels_belong_to_the_innermost_operator_that_launched_them(path):
    first, _ = read_trace(path).steps
    launched = {e.name: [k.name for k in e.kernels] for e in walk(first.operators)}
    assert launched == {"aten::linear": [], "aten::t": [], "aten::addmm": ["splitK", "gemm"],
                        "aten::gelu": ["gelu_kernel"], "aten::mm": ["gemm"]}
    assert [k.name for k in first.operators[0].all_kernels()] == ["splitK", "gemm"]


def test_operators_are_found_inside_composite_ones(path):
    first, _ = read_trace(path).steps
    found = match_operators(["aten::addmm", "aten::gelu", "aten::mm"], first.operators)
    assert [f.start_us for f in found] == [115, 145, 160]


def test_an_operator_that_is_missing_costs_its_neighbours_nothing(path):
    first, _ = read_trace(path).steps
    found = match_operators(["aten::addmm", "aten::cos", "aten::gelu"], first.operators)
    assert [f and f.name for f in found] == ["aten::addmm", None, "aten::gelu"]


def test_sums_in_place_are_found_as_the_sums_that_were_recorded(path):
    first, _ = read_trace(path).steps
    assert match_operators(["aten::gelu_"], first.operators)[0].name == "aten::gelu"


def test_a_graph_launches_many_kernels_at_once(tmp_path):
    events = [
        event("user_annotation", STEP, 0, 100),
        event("cuda_runtime", "cudaGraphLaunch", 10, 5, correlation=9),
        device("kernel", "first", 20, 5, 9), device("kernel", "second", 30, 5, 9),
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (step,) = read_trace(path).steps
    assert [k.name for k in step.kernels] == ["first", "second"]


@pytest.mark.parametrize(("expected", "seen", "positions"), [
    ("abc", "abc", [0, 1, 2]),
    ("abab", "xabxab", [None, 0, 1, None, 2, 3]),
    ("abcd", "acd", [0, 2, 3]),
    ("", "ab", [None, None]),
    ("ab", "", []),
    ("aabbcc", "abc", [0, 2, 4]),
    ("abcdefghijklmnopqrst", "ast", [0, 18, 19]),
    ("xay", "xbby", [0, None, None, 2]),
])
def test_names_are_matched_in_order(expected, seen, positions):
    found = match_names(list(expected), list(seen))
    known = [at for at in found if at is not None]
    assert known == sorted(set(known)) and len(known) == sum(p is not None for p in positions)
    assert all(at is None or expected[at] == name for at, name in zip(found, seen))
    assert len(found) == len(seen)


def test_a_kernel_whose_launch_is_not_in_the_trace_is_tied_by_its_operator_s_id(tmp_path):
    kernel = device("kernel", "k", 20, 5, 9)
    kernel["args"]["External id"] = 3
    operator = event("cpu_op", "aten::mm", 10, 5)
    operator["args"]["External id"] = 3
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [
        event("user_annotation", STEP, 0, 100), operator, kernel]}))
    (step,) = read_trace(path).steps
    assert [k.name for k in step.operators[0].kernels] == ["k"]


@pytest.mark.parametrize("text", [
    "", "[1, 2", json.dumps([1, 2]), json.dumps({"events": []}),
    json.dumps({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm"}]}),
    json.dumps({"traceEvents": EVENTS})[:-40],
])
def test_what_is_no_trace_is_told_in_one_line(tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not a trace") as error:
        read_trace(path)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_trace(tmp_path / "none.json")
