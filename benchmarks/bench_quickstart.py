"""The quickstart as a newcomer runs it, and a model of a hundred million parameters.

`neuronjax quickstart` runs as a command twice: with an empty cache, and with the cache
of the first run. Its own ratios and compile times are the rows; one measurement is used
for all of them, so each has a single sample.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import scaling
from benchmarks.harness import Effort, Result, Samples, row

#: Targets of step time over native, by policy, and of compile time in a second process.
STEPS = {"bf16": None, "fp8": 1.7, "mxfp8": 2.2}
SECOND_SECONDS = 3.0


@functools.cache
def runs() -> tuple[list[dict[str, Any]], list[dict[str, Any]], tuple[float, float]]:
    """Return the records of the first and second process, and the seconds of both."""
    documents, seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"NEURONJAX_CACHE_DIR": f"{folder}/cache"}
        for n in range(2):
            path, picture = Path(folder) / f"{n}.json", Path(folder) / f"{n}.png"
            options = ["--json", str(path), "--output", str(picture)]
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "neuronjax", "quickstart", *options],
                env=environment,
                check=True,
                capture_output=True,
            )
            seconds.append(time.perf_counter() - start)
            documents.append(json.loads(path.read_text())["records"])
    return documents[0], documents[1], (seconds[0], seconds[1])


def seconds_of(records: list[dict[str, Any]], policy: str) -> tuple[float, float]:
    """Return (seconds of the first step with compilation, of a step of later seeds)."""
    own = [record for record in records if record["policy"] == policy]
    later = [record["seconds"] for record in own if record["seed"]]
    return own[0]["seconds"], statistics.median(later)


@row("quickstart/seconds", target=90)
def whole(effort: Effort) -> Result:
    """Measure the whole command on an empty cache; details: a second run."""
    del effort
    first, second = runs()[2]
    details = {"second_seconds": second}
    return Result(value=Samples((first,)), unit="s", sizes={}, details=details)


def step(policy: str, effort: Effort) -> Result:
    """Return emulated over native seconds of a step, as the command reports them."""
    del effort
    (_, native), (_, emulated) = (seconds_of(runs()[0], p) for p in ("native", policy))
    return Result(value=Samples((emulated / native,)), unit="x", sizes={})


def second(policy: str, effort: Effort) -> Result:
    """Return the seconds of compilation in the second process."""
    del effort
    taken = [first - step for first, step in map(_of(policy), runs()[:2])]
    details = {"first_process_seconds": taken[0]}
    return Result(value=Samples((taken[1],)), unit="s", sizes={}, details=details)


def _of(policy: str) -> Callable[[list[dict[str, Any]]], tuple[float, float]]:
    return functools.partial(seconds_of, policy=policy)


for _policy, _target in STEPS.items():
    row(f"quickstart/{_policy}", target=_target)(functools.partial(step, _policy))
    row(f"quickstart/second_{_policy}", target=SECOND_SECONDS)(
        functools.partial(second, _policy)
    )


@functools.cache
def large() -> dict[str, Any]:
    """Return the point of the largest model of `scaling`, native and emulated."""
    function, args, count = scaling.train_step(scaling.MODELS[-1], scaling.TOKENS)
    return scaling.point("parameters", count, function, args, scaling.FULL)


@row("large/step_100M", target=1.5)
def large_step(effort: Effort) -> Result:
    """Return emulated over native run time of a step of 100 million parameters."""
    del effort
    found = large()
    details = {name: found[name] for name in ("native_seconds", "emulated_seconds")}
    value, sizes = Samples((found["ratio"],)), {"parameters": found["value"]}
    return Result(value=value, unit="x", sizes=sizes, details=details)


@row("large/memory_100M", target=1.5)
def large_memory(effort: Effort) -> Result:
    """Return the bytes that XLA plans for the same step, over native."""
    del effort
    found = large()
    native, emulated = (
        found[f"{side}_planned_bytes"] for side in ("native", "emulated")
    )
    details = {"native_bytes": float(native), "emulated_bytes": float(emulated)}
    value, sizes = Samples((emulated / native,)), {"parameters": found["value"]}
    return Result(value=value, unit="x", sizes=sizes, details=details)
