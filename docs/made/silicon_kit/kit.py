"""The kit: a folder that a person with a Trainium runs. The same bytes every time."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

from docs.made.silicon_kit import kernel_text
from docs.made.silicon_kit.probes import PROBES, read_input
from neuronjax.testing.archive import sha256
from neuronjax.testing.silicon import inputs
from neuronjax.testing.silicon.kit import FOLDER, FORMAT, OUTPUTS
from neuronjax.testing.silicon.probes import CHIPS, REDUCTIONS

_FILES = Path(__file__).with_name("files")
_COPIED = (
    _FILES / "README.md",
    Path(inputs.__file__),
    _FILES / "ranks.py",
    _FILES / "run.py",
)
_ELEMENTS = 4096  # of a rank
_DATE = (1980, 1, 1, 0, 0, 0)
_UNIX = 3


def archive() -> bytes:
    """Return the kit as an archive, with the types of what its probes return."""
    members = {f"{FOLDER}{name}": data for name, data in kit_files().items()}
    members[OUTPUTS] = json.dumps(_outputs()).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as made:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.create_system, entry.external_attr = _UNIX, 0o644 << 16
            made.writestr(entry, data)
    return out.getvalue()


def kit_files() -> dict[str, bytes]:
    """Return the files of the kit by name; `kit.json` holds the version, of all the
    others."""
    files = {path.name: path.read_bytes() for path in _COPIED}
    files["kernels.py"] = kernel_text.newer().encode()
    files["kernels_older.py"] = kernel_text.older().encode()
    probes = _described()
    table = json.dumps(probes).encode()
    hashes = [sha256(data) for _, data in sorted(files.items())]
    version = sha256("".join([*hashes, sha256(table)]).encode())[:16]
    lines = ",\n".join(json.dumps(probe) for probe in probes)
    head = json.dumps({"format": FORMAT, "version": version})
    text = f'{head[:-1]}, "probes": [\n{lines}\n]}}\n'
    return {**files, "kit.json": text.encode()}


def _described() -> list[dict[str, Any]]:
    """Return what `run.py` knows of every probe."""
    kernels = [
        {
            "name": probe.name,
            "inputs": {name: list(how) for name, how in probe.inputs.items()},
            "outputs": list(probe.outputs),
            "chips": list(probe.chips),
            "stochastic": probe.stochastic,
        }
        for probe in PROBES.values()
    ]
    return kernels + [
        {
            "name": name,
            "inputs": {"x": list(_of_ranks(ranks, dtype))},
            "outputs": ["out"],
            "chips": list(CHIPS),
            "stochastic": False,
            "ranks": ranks,
        }
        for name, (ranks, dtype) in REDUCTIONS.items()
    ]


def _of_ranks(ranks: int, dtype: str) -> tuple[str, dict[str, Any]]:
    narrow = " narrow" if dtype == "bfloat16" else ""
    return read_input(f"spread {ranks} {_ELEMENTS}{narrow}")


def _outputs() -> dict[str, dict[str, Any]]:
    """Return shape and dtype of every output of every probe."""
    found: dict[str, dict[str, Any]] = {
        name: {output: probe.tiles[output] for output in probe.outputs}
        for name, probe in PROBES.items()
    }
    reduced = {name: dtype for name, (_, dtype) in REDUCTIONS.items()}
    return found | {n: {"out": ((_ELEMENTS,), dtype)} for n, dtype in reduced.items()}
