"""python -m torchweld.exact.campaign [--seeds N] [--processes N] [--minutes M] [--folder F]

Seeded programs checked against eager in float64, and after each pass of the compiler. Started again
with the same folder, it goes on where it was stopped. Exits 1 if anything is wrong that is not one
of the listed limits (campaign/listed.py).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from pathlib import Path

from torchweld.exact.campaign.cases import KINDS, USUAL
from torchweld.exact.campaign.checks import CHECKS
from torchweld.exact.campaign.record import Finished, Log
from torchweld.exact.campaign.run import Campaign, run

# Checks of kernels on a GPU that is here, and of plans for one that is elsewhere.
_ON_A_GPU = ("compiled", "priced", "replayed")
_OF_PLANS = ("interpreted", "dynamic", "priced")


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    asked = parser.parse_args(arguments)
    fit = {"cpu": tuple(CHECKS), "cuda": _ON_A_GPU}.get(asked.device, _OF_PLANS)
    if asked.check not in fit:
        parser.error(
            f"--device cuda goes with --check {_or(_ON_A_GPU)}, "
            f"GPUs by name with {_or(_OF_PLANS)}"
        )
    campaign = Campaign(
        asked.folder, asked.check, asked.device, tuple(asked.kinds), asked.shrink
    )
    seeds = range(asked.first, asked.first + asked.seeds)
    log = run(campaign, seeds, asked.processes, asked.minutes * 60, _tell)
    print(summary(log))
    return 1 if any(f.wrong for f in log.finished) else 0


def summary(log: Log) -> str:
    """Counts of programs by kind, of those that are wrong and of those at listed limits; then of
    each limit."""
    ran = [f for f in log.finished if f.kind]
    wrong, limited = [f for f in ran if f.wrong], [f for f in ran if f.limits]
    lines = [f"{len(ran)} programs of {len(log.finished)} seeds, {len(wrong)} wrong, "
             f"{len(limited)} at listed limits"]  # fmt: skip
    counts, failures, at_limits = (Counter(f.kind for f in part) for part in (ran, wrong, limited))
    lines += [f"  {kind:10} {counts[kind]:8} programs {failures[kind]:6} wrong "
              f"{at_limits[kind]:6} limit" for kind in counts]  # fmt: skip
    by_name = Counter(name for f in limited for name in f.limits)
    return "\n".join([*lines, *(f"  limit: {name}: {n}" for name, n in by_name.items())])


def _or(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _tell(finished: Finished) -> None:
    if finished.found:
        where = f"limit: {', '.join(finished.limits)}" if finished.limits else finished.file
        print(f"seed {finished.seed}: {finished.found[0]}\n  {where}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m torchweld.exact.campaign", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)  # fmt: skip
    add = parser.add_argument
    add("--seeds", type=int, default=1000, help="number of seeds (1000)")
    add("--first", type=int, default=0, help="the first seed (0)")
    add("--processes", type=int, default=1, help="processes at a time (1); 0: this process")
    add("--minutes", type=float, default=math.inf, help="start no seed after so many minutes")
    add("--folder", type=Path, default=Path("campaign"), help="for log and failures (./campaign)")
    add("--check", choices=CHECKS, default="interpreted",
        help="interpreted: no kernels (default); dynamic: no kernels, symbolic sizes;\n"
             "compiled: kernels; scheduled: kernels with random tiles and threads;\n"
             "priced: kernels planned for a device whose rates are random (or no kernels, if that\n"
             "is a GPU by name);\n"
             "replayed: kernels in inference, the last of several calls")  # fmt: skip
    add("--device", default="cpu",
        help="make plans for it: cpu (default), H100, ...; cuda: run kernels on the GPU that is\n"
             f"here (with --check {_or(_ON_A_GPU)})")  # fmt: skip
    add("--shrink", type=float, default=math.inf, metavar="SECONDS",
        help="time for making each failure small (no limit)")  # fmt: skip
    add("--kinds", nargs="+", choices=KINDS, default=list(USUAL),
        help="kinds of programs (all but 'part', 'unread' and 'gated')")
    return parser


if __name__ == "__main__":
    sys.exit(main())
