"""Implement the backend that kda-for-trainium leaves open, with `neuronjax.judge`.

github.com/Jerry2423/kda-for-trainium drives an agent that optimises NKIBench's kernels.
Its `verify.py` states a contract and has no profiler. This file implements the
contract: copy it over `verify.py`, or run it as it is.

    NKIBENCH_ROOT=AccelOpt/NKIBench python examples/kda_contract.py --op silu
    ... --op silu --candidate workspaces/silu/runs/silu_v2.py

The time model predicts every latency, for one physical core of `TARGET`. The contract's
p50 has one value, because the model predicts the same for every run. `baselines.json`
is keyed by op. The baselines of chips are keyed by case too, so the two are not mixed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import neuronjax as nj
from neuronjax.api.judge import SEEDS

TARGET = "trn2"
BASELINES = Path("baselines.json")
PILOT = ("matmul", "silu", "rmsnorm_matmul")
# verify.py: relative L2 in FP32 over every seed, with a wider bound for one op.
TOLERANCES = {"mamba": 3e-5}
TOLERANCE = 2e-5


def main() -> int:
    """0 if every op that was asked for passes, else 1."""
    options = _options()
    root = Path(os.environ.get("NKIBENCH_ROOT", "../AccelOpt/NKIBench"))
    cases = json.loads((root / "summary.json").read_text())
    ops = [options.op] if options.op else PILOT if options.pilot else list(cases)
    if missing := [op for op in ops if op not in cases]:
        sys.exit(f"no op {missing}; {root / 'summary.json'} has {sorted(cases)}")
    baselines = json.loads(BASELINES.read_text()) if BASELINES.is_file() else {}
    results = {op: _verified(op, cases[op]["cases"], root, options) for op in ops}
    if options.build_baselines:
        for op, found in results.items():
            if found["passed"]:
                baselines[op] = _baseline(found)
        BASELINES.write_text(json.dumps(baselines, indent=2) + "\n")
    _print(results, baselines)
    return 0 if all(found["passed"] for found in results.values()) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="NKIBench, judged by neuronjax")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--op")
    chosen.add_argument("--pilot", action="store_true")
    parser.add_argument("--candidate", type=Path)
    parser.add_argument("--build-baselines", action="store_true")
    parser.add_argument("--fast", action="store_true", help="one seed")
    parser.add_argument("--num-cores", type=int, default=1, choices=(1,))
    parser.add_argument("--timeout", type=float, default=900.0)
    options = parser.parse_args()
    if options.candidate and (options.build_baselines or not options.op):
        parser.error("--candidate needs --op, and is no baseline")
    return options


def _verified(
    op: str, cases: dict[str, Any], root: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """What the contract wants of an op, and the case."""
    case, held = next(iter(cases.items()))
    paths = held["impls"][0]
    kernel = options.candidate or root / paths["kernel"]
    verdict = nj.judge(
        kernel,
        reference=root / paths["task"],
        target=TARGET,
        seeds=SEEDS[:1] if options.fast else SEEDS,
        tolerance=TOLERANCES.get(op, TOLERANCE),
        timeout=options.timeout,
    )
    times = verdict.times
    wrong = [s for s in verdict.seeds if not s.correct]
    why = [f"{p.rule}: {p.message}" for p in verdict.limits]
    why += [f"seed {s.seed}: relative L2 {s.relative_l2:.2g}" for s in wrong]
    # The gate is that every seed is right; what is left to chance is told beside it.
    passed = verdict.correct is True and not verdict.limits
    return {
        "passed": passed,
        "latency_ms": times.predicted_ms if times and passed else None,
        "predicted": True,
        "error": None if passed else "; ".join(why),
        "hazards": [f"{p.rule}: {p.message}" for p in verdict.hazards],
        "summary_metrics": _metrics(times),
        "case_id": case,
        "kernel": str(kernel),
    }


def _metrics(times: Any) -> dict[str, float]:
    if times is None:
        return {}
    busy = {f"{queue}_active": share for queue, share in times.engine_activity.items()}
    names = ("mfu", "hbm_read_bytes", "hbm_write_bytes", "spill_bytes")
    return busy | {name: getattr(times, name) for name in names}


def _baseline(found: dict[str, Any]) -> dict[str, Any]:
    held = {name: found[name] for name in ("case_id", "kernel", "predicted")}
    return {"baseline_latency_ms": found["latency_ms"], **held}


def _print(results: dict[str, Any], baselines: dict[str, Any]) -> None:
    speedups = []
    for op, found in results.items():
        mark, latency = "PASS" if found["passed"] else "FAIL", found["latency_ms"]
        line = f"{mark} {op:24}"
        if latency is None:
            print(line, found["error"])
            continue
        line += f" {latency:9.4f} ms predicted"
        if op in baselines:
            speedups.append(baselines[op]["baseline_latency_ms"] / latency)
            line += f" {speedups[-1]:6.2f}x"
        busy = found["summary_metrics"].items()
        shown = (f"{name} {share:.0%}" for name, share in busy if "active" in name)
        print(line, *shown)
        print(*(f"     {hazard}\n" for hazard in found["hazards"]), sep="", end="")
    if speedups:
        mean = math.exp(sum(map(math.log, speedups)) / len(speedups))
        print(f"geomean {mean:.2f}x of {len(speedups)}, predicted")


if __name__ == "__main__":
    sys.exit(main())
