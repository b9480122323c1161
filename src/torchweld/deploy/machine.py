"""What compiled kernels need of a machine, and whether the one at hand has it."""

from __future__ import annotations

import platform
import re
import sys
import sysconfig
from functools import cache
from pathlib import Path

import torch

from torchweld.core.errors import EnvironmentProblem
from torchweld.core.machine import versions
from torchweld.deploy.records import Needs
from torchweld.runtime.plan_cache import code_identity

# Of /proc/cpuinfo on x86: what -march=native may make use of. Others tell of the system or of
# faults. On other processors all features count.
_INSTRUCTIONS = re.compile(
    r"(sse|ssse|pni|avx|amx|fma|f16c|bmi|abm|adx|popcnt|movbe|gfni|vaes|vpclmul|cx16|xop|tbm)\w*"
)
_AGAIN = "export the model again there"


def needs(gpu: str | None) -> Needs:
    """Of what this process compiles. `gpu`: the compute capability of the kernels' GPU."""
    found = versions()
    return Needs(
        f"{platform.system()} {platform.machine()}", found["torch"], found["torchweld"],
        code_identity()[-1], python_tag(), tuple(sorted(processor_features())), gpu,
    )  # fmt: skip


def python_tag() -> str:
    """What modules in C++ are built for."""
    return str(sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag)


def capability(device: torch.device) -> str:
    """ "9.0" """
    major, minor = torch.cuda.get_device_capability(device)
    return f"{major}.{minor}"


def check(wanted: Needs) -> None:
    """Errors: EnvironmentProblem that says what this machine or its software lacks."""
    here = needs(None)
    _same("a machine with", wanted.system, here.system, f"load it on {wanted.system}")
    _same("torch", wanted.torch, here.torch,
          f"install torch {wanted.torch}, or export the model again with {here.torch}")
    _same("torchweld", wanted.torchweld, here.torchweld,
          f"install torchweld {wanted.torchweld}, or export the model again with this one")
    _same("torchweld's files with hash", wanted.code[:12], here.code[:12],
          "install the build that exported it, or export the model again with this one")
    _check_processor(wanted)
    if wanted.gpu is not None:
        _same("Python", wanted.python, here.python,
              "run it with that Python, or export the model again with this one")
        _check_gpu(wanted.gpu)


def _same(what: str, wanted: str, here: str, do: str) -> None:
    if wanted != here:
        raise EnvironmentProblem(f"the archive needs {what} {wanted}, this is {here}", do=do)


def _check_processor(wanted: Needs) -> None:
    missing = sorted(set(wanted.features) - processor_features())
    if missing:
        named = ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else "")
        raise EnvironmentProblem(
            f"the archive's kernels use instructions that this processor lacks: {named}",
            do="load it on a processor that has them, or export the model on one like this")


def _check_gpu(wanted: str) -> None:
    if not torch.cuda.is_available():
        raise EnvironmentProblem("the archive needs a GPU, and torch sees none",
                                 do="load it where there is one, or export it for the CPU")
    _same("a GPU of compute capability", wanted, capability(torch.device("cuda", 0)), _AGAIN)


@cache
def processor_features() -> frozenset[str]:
    """Instruction sets of this processor, as the system names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    told = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    names = told.partition(":")[2].split()
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset(names)
    return frozenset(n for n in names if _INSTRUCTIONS.fullmatch(n))
