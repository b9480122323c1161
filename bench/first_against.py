"""Processor seconds of a first training step of tiny models of transformers, ours and Inductor's.

    python bench/first_against.py hiera jetmoe mobilevitv2 sam

Each way has a process of its own and empty caches. Seconds of the process and of the compilers that
it starts; the wall's are not told, as other work on the machine makes them anything.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile

WAYS = ("torchweld", "inductor")


def spent() -> tuple[float, float]:
    """Processor seconds of this process, and of those that it has waited for."""
    found = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own, others = (used.ru_utime + used.ru_stime for used in found)
    return own, others


def measure(name: str, way: str) -> dict:
    import torch
    from transformers import logging

    import torchweld
    from models_sweep import built
    from problem_check import run_eager, step_of

    torch.set_num_threads(1)
    logging.set_verbosity_error()
    model = built(name, True, argparse.Namespace(device="cpu", dtype="float32"))
    run_eager(model, True)
    backend = "eager" if way == "torchweld" else "inductor"
    torch.compile(torch.neg, backend=backend)(torch.ones(3))  # imports
    before = spent()
    if way == "torchweld":
        run = torchweld.fuse(model.module, calibrate="off")
    else:
        run = torch.compile(model.module)
    step_of(way, run, model, True)()
    own, compilers = (after - start for after, start in zip(spent(), before))
    return {"own": own, "compilers": compilers, "all": own + compilers}


def in_its_own_process(name: str, way: str) -> dict:
    with tempfile.TemporaryDirectory() as cache:
        folders = {f"{who}_CACHE_DIR": f"{cache}/{who}" for who in ("TORCHWELD", "TORCHINDUCTOR")}
        alone = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, name, "--child", way]
        said = subprocess.run(command, stdout=subprocess.PIPE, check=True,
                              env=os.environ | folders | alone).stdout  # fmt: skip
    return json.loads(said.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", help="architectures, as of bench/models_sweep.py")
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(measure(asked.names[0], asked.child)))
        return
    print("| first training step, s | way | own | compilers | all |\n|---|---|---|---|---|")
    for name in asked.names:
        for way in WAYS:
            row = in_its_own_process(name, way)
            print(f"| {name} | {way} | " + " | ".join(f"{s:.1f}" for s in row.values()) + " |",
                  flush=True)


if __name__ == "__main__":
    main()
