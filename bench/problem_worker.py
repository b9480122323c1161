"""The process that checks problems, holds them ready, and times them when told to."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from problem_check import Asked, checked, lives, timed

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from problem_board import Task

CROWDED = 0.35  # of the memory is free: no more problems are held


@dataclass(frozen=True)
class Answer:
    """`row`: what was found, as plain data. `well`: the task was done. `crowded`: the device, or
    the machine, has little memory left. `last`: the process ends."""

    row: dict
    well: bool = True
    crowded: bool = False
    last: bool = False


def serve(connection: Connection, asked: Asked, log: Path) -> None:
    """Says None once it is ready. Then answers each Task until None comes in. What it prints goes
    to `log`. It ends after an error of the device, which no later call would survive."""
    _print_to(log)
    os.environ.setdefault("TORCHWELD_LOG", "capture=debug")  # why a graph runs unfused
    _prepare_torch()
    held: dict[str, dict[str, Callable]] = {}
    connection.send(None)
    while (task := connection.recv()) is not None:
        answer = _done(task, asked, held)
        last = not answer.well and not lives(asked.device)
        connection.send(replace(answer, last=last))
        if last:
            os._exit(1)


def _print_to(log: Path) -> None:
    with open(log, "a") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())


def _prepare_torch() -> None:
    """Many models are held at once, and some share the code of their `forward`: none of them may
    be refused, or compiled for any sizes, because of another."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 1000
    torch._dynamo.config.automatic_dynamic_shapes = False


def _done(task: Task, asked: Asked, held: dict[str, dict[str, Callable]]) -> Answer:
    import torch

    from torchweld.core.errors import one_line

    print(f"-- {task.what} {task.problem}", flush=True)
    try:
        if task.what == "time":
            row = timed(held.pop(task.problem), asked)
            if not held:
                torch.compiler.reset()  # or it would keep what was compiled for them
            return Answer(row, True, _crowded(asked.device))
        row, steps = checked(task.problem, asked)
        if steps:
            held[task.problem] = steps
        return Answer(row, True, _crowded(asked.device))
    except Exception as error:
        traceback.print_exc()
        row = {"problem": f"{task.what}: {one_line(error)[:300]}"}
        return Answer(row, False, crowded=isinstance(error, torch.OutOfMemoryError))
    finally:
        sys.stdout.flush()


def _crowded(device: str) -> bool:
    import torch

    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return free < CROWDED * total
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
    return sizes["MemAvailable"] < CROWDED * sizes["MemTotal"]
