"""The seconds of a verdict: by `neuronjax judge` in a new process, and in a process
that keeps JAX loaded, as `judge --serve` does.

The candidates are in `judged_kernels`: an elementwise FP32 kernel on [4096, 7168], an
FP32 matmul of 2048 x 2048 x 2048, and a kernel that violates a limit. The small one is
the first kernel on [128, 7168]. Each uses one seed.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from pathlib import Path

import neuronjax as nj
from benchmarks.harness import (
    Effort,
    Result,
    Samples,
    row,
    seconds_of,
    users_environment,
)

KERNELS = Path(__file__).with_name("judged_kernels")
SEED = 42
ALONE_SECONDS, LIMIT_SECONDS, WARM_SECONDS = 10.0, 2.0, 1.0


def alone(kernel: str, op: str, accepted: bool, _: Effort) -> Result:
    """Measure wall time of a whole process, three times after one."""
    files = [str(KERNELS / f"{kernel}.py"), f"--reference={KERNELS / op}_reference.py"]
    command = [sys.executable, "-m", "neuronjax", "judge", *files, f"--seeds={SEED}"]
    environment = users_environment()

    def judge() -> None:
        ended = subprocess.run(command, capture_output=True, text=True, env=environment)
        if ended.returncode != (0 if accepted else 1):
            raise RuntimeError(f"{kernel}: {ended.stdout}{ended.stderr}")

    judge()  # compiles Python
    return Result(value=Samples(tuple(seconds_of(judge) for _ in range(3))), unit="s")


def warm(kernel: str, op: str, accepted: bool, effort: Effort) -> Result:
    """Measure verdicts in this process after the first one."""
    files = KERNELS / f"{kernel}.py", KERNELS / f"{op}_reference.py"

    def judge() -> None:
        verdict = nj.judge(files[0], reference=files[1], seeds=[SEED])
        if verdict.accepted != accepted:
            raise RuntimeError(str(verdict))

    judge()
    spent: list[float] = []
    start = time.perf_counter()
    while effort.goes_on(len(spent), start):
        spent.append(seconds_of(judge))
    return Result(value=Samples(tuple(spent)), unit="s")


for _name, _how, _target, _kernel, _op, _accepted in (
    ("silu-29M", alone, ALONE_SECONDS, "silu", "silu", True),
    ("matmul-fp32", alone, ALONE_SECONDS, "matmul", "matmul", True),
    ("limit", alone, LIMIT_SECONDS, "too_wide", "silu", False),
    ("limit-warm", warm, LIMIT_SECONDS, "too_wide", "silu", False),
    ("small-warm", warm, WARM_SECONDS, "silu", "silu_tile", True),
):
    _measure = functools.partial(_how, _kernel, _op, _accepted)
    row(f"judge/{_name}", target=_target)(_measure)
