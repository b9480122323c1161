"""All architectures of transformers, tiny and with random weights: does torchweld compute what
eager does, in one graph and without a warning?

    python bench/models_sweep.py [NAMES] [--device cuda] [--dtype bfloat16] [--times] [--workers 8]

Each model has a process of its own for inference and one for training. What is found are lines of
$OUT/models-sweep-DEVICE-DTYPE.jsonl (default: out); models that have a line are not run again. The
last table counts what was found. Errors are judged as by bench/problems.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor, nn

from problem_check import EagerFails, errors_of, graphs_of, run_eager, step_of
from problem_set.core import Built
from problem_set.tiny import NoModel, architectures, tiny
from tables import ROOT

CALLS = 20  # of which the median is taken


class Called(nn.Module):
    """The model, called with tensors by position."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor):
        return self.model(**dict(zip(self.names, inputs)))


def built(name: str, train: bool, given: argparse.Namespace) -> Built:
    made, dtype = tiny(name, train), getattr(torch, given.dtype)
    inputs = [t.to(given.device, dtype if t.is_floating_point() else None)
              for t in made.inputs.values()]  # fmt: skip
    module = Called(made.model, tuple(made.inputs)).to(given.device, dtype)
    return Built(module.train(train), tuple(inputs))


def found(name: str, train: bool, given: argparse.Namespace) -> dict:
    """Figures of one way to use a model. Errors: EagerFails, NoModel, whatever torchweld raises."""
    import torchweld
    from torchweld.core.events import TorchweldWarning, clear, events
    from torchweld.exact.verify import verify

    model = built(name, train, given)
    run_eager(model, train)
    clear()
    start = time.process_time()
    run = torchweld.fuse(model.module)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        step = step_of("torchweld", run, model, train)
        step()
        first = time.process_time() - start
        report = verify(model.module, run, model.inputs, train=train, seeds=(0,))
    told = [str(w.message) for w in heard if issubclass(w.category, TorchweldWarning)]
    row = {"class": type(model.module.model).__name__, "first_call_s": first, "warnings": told,
           "events": [event.message for event in events()]}  # fmt: skip
    row |= graphs_of(run, train) | errors_of(report)
    if row["cut"]:
        row["dynamo_graphs"] = dynamos_graphs(model, train)
    return row | (compared(model, step, train) if given.times else {})


def dynamos_graphs(model: Built, train: bool) -> int:
    """Into how many graphs Dynamo cuts the model by itself."""
    torch.compiler.reset()
    seen = []

    def count(graph, _):
        seen.append(graph)
        return graph.forward

    step_of("eager", torch.compile(model.module, backend=count), model, train)()
    return len(seen)


def compared(model: Built, step, train: bool) -> dict:
    """CPU milliseconds of a call; the ways take turns."""
    others = {"eager": model.module, "inductor": torch.compile(model.module)}
    steps = {way: step_of(way, run, model, train) for way, run in others.items()}
    steps["torchweld"] = step
    spent: dict[str, list[float]] = {way: [] for way in steps}
    for _ in range(3 + CALLS):
        for way, call in steps.items():
            start = time.process_time()
            call()
            spent[way].append(1000 * (time.process_time() - start))
    return {"ms": {way: sorted(t[3:])[CALLS // 2] for way, t in spent.items()}}


# -- one process a model --


def child(connection: Connection, name: str, train: bool, given: argparse.Namespace) -> None:
    from transformers import logging

    logging.set_verbosity_error()
    torch.set_num_threads(1)
    try:
        row = found(name, train, given)
    except (NoModel, EagerFails) as error:
        row = {"not_run": f"{type(error).__name__}: {error}"[:300]}
    except Exception as error:
        row = {"raised": f"{type(error).__name__}: {error}"[:1000]}
    connection.send(row)


def row_of(name: str, train: bool, given: argparse.Namespace) -> dict:
    """A process that dies or is late has a row, too."""
    context = multiprocessing.get_context("forkserver")  # threads wait here: fork might hang
    here, there = context.Pipe()
    process = context.Process(target=child, args=(there, name, train, given))
    process.start()
    there.close()
    try:
        if here.poll(given.each):
            row = here.recv()
        else:
            process.kill()
            row = {"late_or_dead": f"not finished within {given.each:.0f} s"}
    except EOFError:
        process.join()
        row = {"late_or_dead": f"the process died (status {process.exitcode})"}
    process.join()
    return {"name": name, "train": train} | row


# -- what was found --


def marks(row: dict) -> list[str]:
    """What is to be looked at; nothing if all is well."""
    more_cuts = row.get("cut") and row["graphs"] > row["dynamo_graphs"] * (1 + row["train"])
    times = row.get("ms", {})
    named = {
        "not run": "not_run" in row, "RAISED": "raised" in row, "WRONG": bool(row.get("outside")),
        "late or dead": "late_or_dead" in row, "warned": bool(row.get("warnings")),
        "in eager": bool(row.get("in_eager")), "more cuts than Dynamo's": bool(more_cuts),
        "slower than torch.compile": times.get("torchweld", 0) > 1.1 * times.get("inductor", 1),
    }  # fmt: skip
    return [mark for mark, holds in named.items() if holds]


def summary(rows: list[dict]) -> str:
    lines = []
    for train in (False, True):
        seen = [row for row in rows if row["train"] == train]
        counts = Counter(mark for row in seen for mark in marks(row))
        well = sum(not marks(row) for row in seen)
        told = [f"{count} {mark}" for mark, count in counts.most_common()]
        way = "training" if train else "inference"
        lines.append(f"{way}: {len(seen)} models, {well} well, {', '.join(told)}")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="architectures, all if there are none")
    parser.add_argument("--ways", default="inference,training")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--each", type=float, default=240.0, help="seconds, at most, of a model")
    parser.add_argument("--total", type=float, default=3600.0, help="seconds in all")
    parser.add_argument("--times", action="store_true", help="CPU time, also of torch.compile")
    parser.add_argument("--stride", type=int, default=1, help="every so many, for a broad start")
    given = parser.parse_args()
    if given.times and given.device != "cpu":
        parser.error("--times is CPU time: use --device cpu")
    return given


def main() -> None:
    given = arguments()
    folder = Path(os.environ.get("OUT", ROOT / "out"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"models-sweep-{given.device}-{given.dtype}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    for row in new_rows(given, {(row["name"], row["train"]) for row in rows}):
        rows.append(row)
        with open(path, "a") as file:
            file.write(json.dumps(row) + "\n")
        way = "training" if row["train"] else "inference"
        print(f"{row['name']}, {way}: {', '.join(marks(row)) or 'well'}", flush=True)
    print(summary(rows))


def new_rows(given: argparse.Namespace, done: set[tuple[str, bool]]) -> Iterator[dict]:
    """Rows of models that are not `done`, as they come, for as long as `total` allows."""
    end = time.monotonic() + given.total
    names = given.names or architectures()[:: given.stride]
    pairs = itertools.product(names, [way == "training" for way in given.ways.split(",")])
    multiprocessing.set_forkserver_preload(["torch", "transformers", "problem_set.tiny"])

    def row(name: str, train: bool) -> dict | None:
        return row_of(name, train, given) if time.monotonic() < end else None

    with ThreadPoolExecutor(given.workers) as pool:
        asked = [pool.submit(row, *pair) for pair in pairs if pair not in done]
        yield from filter(None, (each.result() for each in as_completed(asked)))


if __name__ == "__main__":
    main()
