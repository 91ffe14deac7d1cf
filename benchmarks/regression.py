"""`python -m benchmarks.regression`: whole programs whose bits are pinned.

Programs of `tests/zoo` under policies and targets, each result a SHA-256 of the paths,
dtypes, shapes and bits of every output leaf, compared with `golden_hashes.json`; and
the stored programs of `tests/golden`, checked alone. Verdicts:

    equal          the bits are those that are pinned
    DIFFERS        they are not: the exit code is 1
    other program  this JAX makes another StableHLO program of the function than the one
                   that was pinned, so that other bits would be no defect
    not pinned     there is no hash yet

`--update [PART]` pins what comes out, of the cases whose names contain PART; say in the
commit why bits are other ones. The oracles are elsewhere: a hash shows that bits hold,
not that they are right.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

import neuronjax as nj
from benchmarks import results_file
from benchmarks.harness import progress
from neuronjax.diagnostics.edits.canonical_text import fingerprint
from neuronjax.testing import GoldenMismatch, check_stored

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).with_name("golden_hashes.json")
STORED = ROOT / "tests" / "golden" / "golden"
#: LLVM's optimizations cost most of the compile time and change no bit.
CHEAP = {"xla_backend_optimization_level": 0}

DATAPATHS = (
    ("fp32", "trn2"),
    ("tf32", "trn2"),
    ("bf16", "trn1"),
    ("bf16", "trn2"),
    ("bf16_all", "trn2"),
    ("bf16_stochastic", "trn2"),
    ("fp8", "trn1"),
    ("fp8", "trn2"),
    ("fp8", "trn3"),
    ("mxfp8", "trn3"),
    ("mxfp4", "trn3"),
    ("sparse", "trn2"),
)
COMMON = (("bf16", "trn2"), ("fp8", "trn2"), ("mxfp8", "trn3"))
#: Program of the zoo -> (policy, target).
CASES: dict[str, tuple[tuple[str, str], ...]] = {
    "mlp_forward": DATAPATHS,
    "mlp_adam": COMMON,
    "gpt_forward": COMMON,
    "gpt_adam": COMMON[:2],
    "cnn_sgd_momentum": COMMON[:1],
    "lstm_lion": COMMON[:1],
    "moe_masked_adafactor": COMMON[:1],
    "mamba_scan_adam": COMMON[:1],
}
QUICK = ("mlp_forward", "mlp_adam")


def run_case(program: str, policy: str, target: str) -> dict[str, str]:
    """Return the hash of a program's results, and that of the program itself."""
    # The digest and policies of the tests, which the checkout and the sdist contain.
    from tests.conformance import bits
    from tests.zoo import PROGRAMS

    function, args = PROGRAMS[program].make(0)
    step = nj.jit(
        function, target=target, policy=bits.POLICIES[policy], compiler_options=CHEAP
    )
    if bits.POLICIES[policy].rounding == "stochastic":
        step = step.with_rounding_seed(bits.CALL_INDEX)
    captured = nj.jit(function, target=target).lower(*args).program
    return {"program": fingerprint(captured), "bits": bits.digest(step(*args))}


def verdict(found: Mapping[str, str], pinned: Mapping[str, str] | None) -> str:
    """Return one of the verdicts that the module's docstring lists."""
    if pinned is None:
        return "not pinned"
    if found["bits"] == pinned["bits"]:
        return "equal"
    return "DIFFERS" if found["program"] == pinned["program"] else "other program"


def zoo_entries(
    golden: Mapping[str, Any], *, quick: bool, part: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield an entry for every case of the zoo whose name contains `part`."""
    for program in QUICK if quick else CASES:
        for policy, target in CASES[program]:
            name = f"{program}:{policy}:{target}"
            if part not in name:
                continue
            start = time.perf_counter()
            with jax.numpy_dtype_promotion("standard"):
                found = run_case(program, policy, target)
            entry: dict[str, Any] = {"name": name, "kind": "zoo", **found}
            entry["verdict"] = verdict(found, golden.get(name))
            entry["seconds"] = round(time.perf_counter() - start, 2)
            progress(f"{name}: {entry['verdict']}, {entry['seconds']} s")
            yield entry


def stored_entries(quick: bool) -> Iterator[dict[str, Any]]:
    """Yield an entry for each stored program of `tests/golden`."""
    paths = sorted(STORED.glob("*.json"))
    for path in paths[-1:] if quick else paths:
        start = time.perf_counter()
        try:
            check_stored(path)
            holds = "equal"
        except GoldenMismatch as error:
            progress(str(error))
            holds = "DIFFERS"
        stored = json.loads(path.read_text())
        yield {
            "name": f"{path.stem}:{stored['policy']['name'] or 'own'}:"
            f"{stored['target']}",
            "kind": "stored",
            "program": stored["program"]["same_as"],
            "bits": stored["arrays"]["sha256"],
            "verdict": holds,
            "seconds": round(time.perf_counter() - start, 2),
        }


def pinned() -> dict[str, dict[str, str]]:
    """Return the hashes in `golden_hashes.json`; empty if there is no file."""
    return json.loads(GOLDEN.read_text())["hashes"] if GOLDEN.exists() else {}


def measure(quick: bool) -> dict[str, Any]:
    """Return all verdicts; `failed` if a bit changed."""
    entries = [*zoo_entries(pinned(), quick=quick), *stored_entries(quick)]
    failed = any(entry["verdict"] == "DIFFERS" for entry in entries)
    return {"entries": entries, "failed": failed}


def update(part: str) -> int:
    """Store the hashes of the zoo's cases whose names contain `part`."""
    hashes = pinned()
    for entry in zoo_entries(hashes, quick=False, part=part):
        hashes[entry["name"]] = {key: entry[key] for key in ("program", "bits")}
        found = {"jax": jax.__version__, "hashes": dict(sorted(hashes.items()))}
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def show(found: Mapping[str, Any]) -> str:
    """Return a line for each case."""
    return "\n".join(
        f"{entry['name']:44} {entry['bits'][:16]} {entry['verdict']}"
        for entry in found["entries"]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, or `--update`."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["--update"]:
        return update("".join(given[1:2]))
    return results_file.command("regression", measure, show, given)


if __name__ == "__main__":
    sys.exit(main())
