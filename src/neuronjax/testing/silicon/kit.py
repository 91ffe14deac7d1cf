"""The kit: a folder that a person with a Trainium runs. The same bytes every time.

It is part of the package as `kit.zip`, which is made of the probes in docs/made.
"""

from __future__ import annotations

import functools
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neuronjax.testing.archive import write_atomically

FORMAT = "neuronjax-silicon-results"
#: In the archive: the files of the kit, and the types of what its probes return.
FOLDER, OUTPUTS = "kit/", "outputs.json"

#: Shape and dtype by the name of an output.
OutputTypes = Mapping[str, tuple[tuple[int, ...], str]]


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
def _archive() -> Mapping[str, bytes]:
    with zipfile.ZipFile(Path(__file__).with_name("kit.zip")) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def kit_files() -> dict[str, bytes]:
    """Return the files of the kit by name; `kit.json` holds the version."""
    return {
        name.removeprefix(FOLDER): data
        for name, data in _archive().items()
        if name.startswith(FOLDER)
    }


@functools.cache
def _table() -> dict[str, Any]:
    return json.loads(kit_files()["kit.json"])


def kit_version() -> str:
    """Return what results say of the kit that they are of."""
    return _table()["version"]


def described() -> dict[str, dict[str, Any]]:
    """Return what `run.py` knows of every probe, by name."""
    return {probe["name"]: probe for probe in _table()["probes"]}


def outputs_of(probe: str) -> OutputTypes:
    """Return shape and dtype of every output of a probe."""
    found = json.loads(_archive()[OUTPUTS])[probe]
    return {name: (tuple(shape), dtype) for name, (shape, dtype) in found.items()}
