"""The kit: a folder that a person with a Trainium runs. The same bytes every time."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from neuronjax.testing.archive import sha256, write_atomically
from neuronjax.testing.silicon import kernel_text
from neuronjax.testing.silicon.probes import CHIPS, PROBES, REDUCTIONS, read_input

_FILES = Path(__file__).with_name("files")
_COPIED = ("README.md", "inputs.py", "ranks.py", "run.py")
FORMAT = "neuronjax-silicon-results"
_ELEMENTS = 4096  # of a rank


def write_silicon_kit(folder: str | Path = "silicon-kit") -> list[Path]:
    """Writes the probes for a Trainium, and what runs them, into a folder.

    The folder is for an instance with the vendor's SDK: `python run.py` there leaves
    `results/`, which `check_silicon` reads. Needs neither neuronjax nor JAX there.

    Args:
        folder: made if it does not exist; files of the same names are replaced.

    Returns:
        The paths written.
    """
    paths = []
    for name, data in kit_files().items():
        paths.append(Path(folder) / name)
        write_atomically(paths[-1], data)
    return paths


@functools.cache
def kit_files() -> dict[str, bytes]:
    """The files of the kit by name; `kit.json` holds the version, of all the others."""
    files = {name: (_FILES / name).read_bytes() for name in _COPIED}
    files["kernels.py"] = kernel_text.newer().encode()
    files["kernels_older.py"] = kernel_text.older().encode()
    probes = list(described().values())
    table = json.dumps(probes).encode()
    hashes = [sha256(data) for _, data in sorted(files.items())]
    version = sha256("".join([*hashes, sha256(table)]).encode())[:16]
    lines = ",\n".join(json.dumps(probe) for probe in probes)
    head = json.dumps({"format": FORMAT, "version": version})
    text = f'{head[:-1]}, "probes": [\n{lines}\n]}}\n'
    return {**files, "kit.json": text.encode()}


def kit_version() -> str:
    """What results say of the kit that they are of."""
    return json.loads(kit_files()["kit.json"])["version"]


@functools.cache
def described() -> dict[str, dict[str, Any]]:
    """What `run.py` knows of every probe, by name."""
    found: dict[str, dict[str, Any]] = {}
    for probe in PROBES.values():
        found[probe.name] = {
            "name": probe.name,
            "inputs": {name: list(how) for name, how in probe.inputs.items()},
            "outputs": list(probe.outputs),
            "chips": list(probe.chips),
            "stochastic": probe.stochastic,
        }
    for name, (ranks, dtype) in REDUCTIONS.items():
        narrow = " narrow" if dtype == "bfloat16" else ""
        how = list(read_input(f"spread {ranks} {_ELEMENTS}{narrow}"))
        found[name] = {
            "name": name,
            "inputs": {"x": how},
            "outputs": ["out"],
            "chips": list(CHIPS),
            "stochastic": False,
            "ranks": ranks,
        }
    return found
