"""The kit: a folder of files, always the same bytes, to run on a Trainium.

The package contains the kit as `kit.zip`, which is made of the probes in docs/made.
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
#: Names in the archive: the folder of the kit's files, and the types of the probes'
#: outputs.
FOLDER, OUTPUTS = "kit/", "outputs.json"

#: Name of an output -> its shape and dtype.
OutputTypes = Mapping[str, tuple[tuple[int, ...], str]]


def write_silicon_kit(folder: str | Path = "silicon-kit") -> list[Path]:
    """Write the probes for a Trainium, and the script that runs them, into a folder.

    Copy the folder to an instance with the vendor's SDK, and run `python run.py` in it.
    The run needs neither neuronjax nor JAX, and writes `results/` for `check_silicon`.

    Args:
        folder: created if it does not exist; files of the same names are replaced.

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
    own = {n: data for n, data in _archive().items() if n.startswith(FOLDER)}
    return {name.removeprefix(FOLDER): data for name, data in own.items()}


@functools.cache
def _table() -> dict[str, Any]:
    return json.loads(kit_files()["kit.json"])


def kit_version() -> str:
    """Return the version of the kit, which its results contain too."""
    return _table()["version"]


def described() -> dict[str, dict[str, Any]]:
    """Return the entries of `kit.json` for all probes, by name."""
    return {probe["name"]: probe for probe in _table()["probes"]}


def outputs_of(probe: str) -> OutputTypes:
    outputs = json.loads(_archive()[OUTPUTS])[probe]
    return {name: (tuple(shape), dtype) for name, (shape, dtype) in outputs.items()}
