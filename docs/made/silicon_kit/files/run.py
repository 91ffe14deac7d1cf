"""Runs the probes of this kit on a Trainium, and writes what the chip returned.

    python run.py                      all of it, into results/
    python run.py --chip trn2 --limit 300 --only vector_,tensor_

Needs Python 3.10, NumPy and the vendor's package: `nki`, or the older `neuronxcc.nki`.
Every probe stands alone: one that is refused leaves its error in results/manifest.json.
"""

# pyright: basic, reportMissingParameterType=false, reportMissingImports=false
# pyright: reportArgumentType=false

import argparse
import hashlib
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import inputs  # noqa: E402

STOCHASTIC = {
    "NEURON_RT_STOCHASTIC_ROUNDING_EN": "1",
    "NEURON_RT_STOCHASTIC_ROUNDING_SEED": "1",
}


def main(argv=None):
    """Runs what the command line says; the exit status is 0 if anything came back."""
    options = _options(argv)
    kit = json.loads((HERE / "kit.json").read_text())
    folder = Path(options.results)
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "format": kit["format"],
        "kit": kit["version"],
        "chip": options.chip or _chip(),
        "host": platform.platform(),
        "versions": _versions(),
        "environment": {k: v for k, v in os.environ.items() if k.startswith("NEURON")},
        "probes": {},
    }
    if options.more and (folder / "manifest.json").is_file():
        before = json.loads((folder / "manifest.json").read_text())
        manifest["probes"] = before["probes"]
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = manifest["chip"]
    end = time.monotonic() + options.limit
    possible = _possible(kit["probes"], manifest["chip"], options.only)
    chosen = [p for p in possible if p["stochastic"] == options.stochastic]
    for number, probe in enumerate(chosen, 1):
        record = _run(probe, folder, end, options.older)
        manifest["probes"][probe["name"]] = record
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
        what = record.get("error", "done").strip().splitlines()[-1][:60]
        seconds = record.get("seconds", 0.0)
        print(f"[{number}/{len(chosen)}] {probe['name']}: {what} ({seconds:.1f} s)")
    if len(chosen) < len(possible) and not options.stochastic:
        _run_stochastic(options, manifest["chip"], end)
        manifest = json.loads((folder / "manifest.json").read_text())
    done = sum("file" in record for record in manifest["probes"].values())
    print(f"{done} of {len(manifest['probes'])} probes in {folder}: send that folder")
    return 0 if done else 1


def _options(argv):
    parser = argparse.ArgumentParser(description="Runs the probes of this kit.")
    parser.add_argument("--chip", help="trn1, trn2 or trn3; else it is found out")
    parser.add_argument("--results", default="results", help="folder to write")
    parser.add_argument("--limit", type=float, default=540, help="seconds in all")
    parser.add_argument("--only", default="", help="beginnings of names: cast_,scan")
    parser.add_argument("--older", action="store_true", help="use neuronxcc.nki")
    parser.add_argument("--stochastic", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--more", action="store_true", help="keep earlier results")
    return parser.parse_args(argv)


def _possible(probes, chip, only):
    begins = tuple(only.split(","))
    return [p for p in probes if chip in p["chips"] and p["name"].startswith(begins)]


def _run(probe, folder, end, older):
    """What the manifest says of one probe; its arrays are a file."""
    record = {"inputs": {}}
    if time.monotonic() > end:
        return {**record, "error": "the time limit was reached"}
    start = time.monotonic()
    try:
        arrays = []
        for name, (dtype, how) in probe["inputs"].items():
            bits = inputs.make(probe["name"], name, how)
            record["inputs"][name] = hashlib.sha256(bits.tobytes()).hexdigest()
            arrays.append(bits.view(_dtype(dtype)))
        found = _function(probe, older)(*arrays)
        found = found if isinstance(found, (tuple, list)) else (found,)
        bits = {n: _bits(a) for n, a in zip(probe["outputs"], found)}
        path = folder / f"{probe['name']}.npz"
        np.savez(path, **bits)
        record["file"] = path.name
        record["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # the vendor's compiler may raise SystemExit
        record["error"] = f"{type(error).__name__}: {error}"[:2000]
    record["seconds"] = round(time.monotonic() - start, 3)
    return record


def _function(probe, older):
    """The kernel, for whichever of the vendor's packages is installed."""
    if "ranks" in probe:
        ranks = importlib.import_module("ranks")
        return lambda x: ranks.all_reduce(x, probe["ranks"])
    try:
        module = importlib.import_module("kernels_older" if older else "kernels")
    except ImportError:
        module = importlib.import_module("kernels_older")
    return getattr(module, probe["name"])


def _dtype(name):
    """A dtype; narrow ones come with the vendor's package."""
    if name in ("float32", "int32"):
        return np.dtype(name)
    return np.dtype(getattr(importlib.import_module("ml_dtypes"), name))


def _bits(array):
    array = np.ascontiguousarray(np.asarray(array))
    return array.view(f"u{array.dtype.itemsize}")


def _run_stochastic(options, chip, end):
    """The probes of stochastic rounding, in a process whose runtime is set so."""
    left = str(max(1.0, end - time.monotonic()))
    script = next(n for n, a in enumerate(sys.orig_argv) if a.endswith("run.py"))
    command = [*sys.orig_argv[: script + 1], "--stochastic", "--more"]
    command += ["--chip", chip, "--results", options.results, "--limit", left]
    command += ["--only", options.only, *(["--older"] if options.older else [])]
    status = subprocess.run(command, env={**os.environ, **STOCHASTIC}).returncode
    if status:
        print(f"stochastic rounding: the process ended with status {status}")


def _chip():
    """From the environment, or from what neuron-ls says."""
    named = os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", "")
    if named:
        aliases = {"gen2": "trn1", "gen3": "trn2", "gen4": "trn3", "inf2": "trn1"}
        return aliases.get(named, named[:4])
    try:
        told = subprocess.run(["neuron-ls"], capture_output=True, text=True).stdout
    except OSError:
        told = ""
    for chip, words in {"trn1": "inf2", "trn2": "trn2", "trn3": "trn3"}.items():
        if chip in told.lower() or words in told.lower():
            return chip
    raise SystemExit("which chip is this? add --chip trn1, trn2 or trn3")


def _versions():
    """Of Python, NumPy and the vendor's packages."""
    from importlib import metadata

    names = ("numpy", "nki", "neuronx-cc", "jax", "jax-neuronx", "libneuronxla")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
