"""The results of a chip, which are checked to be complete and of this kit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.ir.array_file import read_npz
from neuronjax.ir.json_text import json_object
from neuronjax.testing.archive import sha256
from neuronjax.testing.silicon import inputs
from neuronjax.testing.silicon.cases import ProbeCase, numbers
from neuronjax.testing.silicon.kit import FORMAT, described, kit_version, outputs_of
from neuronjax.testing.silicon.probes import CHIPS

MANIFEST = "manifest.json"
_NOT_RUN = "was not run"


@dataclass(frozen=True, kw_only=True)
class SiliconResults:
    """The usable results in a folder."""

    chip: str  # trn1, trn2 or trn3
    cases: Mapping[str, ProbeCase]  # the results by probe
    left_out: Mapping[str, str]  # probe without a usable result -> the reason
    versions: Mapping[str, str]  # of the packages that ran the probes


def read_results(folder: Path) -> SiliconResults:
    """Read the results that `run.py` wrote; unusable results are in `left_out`."""
    manifest = _manifest(folder)
    chip = manifest["chip"]
    cases: dict[str, ProbeCase] = {}
    left_out: dict[str, str] = {}
    for name, probe in described().items():
        if chip not in probe["chips"]:
            continue
        case = _case(folder, chip, probe, manifest["probes"].get(name))
        if isinstance(case, str):
            left_out[name] = case
        else:
            cases[name] = case
    if not cases:
        tried = {n: why for n, why in left_out.items() if why != _NOT_RUN}
        name, reason = next(iter((tried or left_out).items()))
        raise InvalidProgramError(
            f"{folder} has no usable result; {name}: {reason}",
            remedy="copy the whole folder again, or run python run.py once more",
        )
    versions = manifest.get("versions", {})
    return SiliconResults(chip=chip, cases=cases, left_out=left_out, versions=versions)


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    other_folder = "give the folder that the kit's run.py wrote: results/"
    copy_again = "copy it again from the instance"
    if not path.is_file():
        raise InvalidProgramError(f"there is no {path}", remedy=other_folder)
    try:
        manifest = json_object(path.read_bytes())
    except (OSError, ValueError) as error:
        what = f"{path} is damaged: {error}"
        raise InvalidProgramError(what, remedy=copy_again) from error
    kit, chip = manifest.get("kit"), manifest.get("chip")
    if manifest.get("format") != FORMAT:
        fault = "was not written by a silicon kit", other_folder
    elif kit != kit_version():
        fault = (
            f"is of kit {kit}, this neuronjax has kit {kit_version()}",
            "check the results with the neuronjax that wrote the kit, or run"
            " today's kit: neuronjax silicon-kit",
        )
    elif not isinstance(manifest.get("probes"), dict):
        fault = "is damaged: its probes are no mapping", copy_again
    elif chip not in CHIPS:
        remedy = f"run the kit again: run.py --chip, with one of: {', '.join(CHIPS)}"
        fault = f"is of chip {chip!r}", remedy
    else:
        return manifest
    raise InvalidProgramError(f"{path} {fault[0]}", remedy=fault[1])


def _case(
    folder: Path, chip: str, probe: Mapping[str, Any], record: Any
) -> ProbeCase | str:
    if not isinstance(record, dict):
        return _NOT_RUN
    if "file" not in record:
        return f"refused: {record.get('error', 'without a reason')}"
    wanted = probe["inputs"].items()
    given = {n: inputs.make(probe["name"], n, how) for n, (_, how) in wanted}
    hashes = {name: sha256(bits) for name, bits in given.items()}
    if record.get("inputs") != hashes:
        return "its inputs were not those of this kit"
    path = folder / f"{probe['name']}.npz"
    if not path.is_file():
        return f"{path.name} is missing"
    data = path.read_bytes()
    if sha256(data) != record.get("sha256"):
        return f"{path.name} is cut short or was changed"
    try:
        arrays = read_npz(data)
    except InvalidProgramError as error:
        return f"{path.name} cannot be read: {error.what}"
    outputs = {}
    for name, (shape, dtype) in outputs_of(probe["name"]).items():
        bits = arrays.get(name)
        if bits is None or bits.dtype.kind != "u" or bits.size != np.prod(shape):
            return f"{path.name} holds no {dtype}{list(shape)} named {name}"
        outputs[name] = numbers(np.ascontiguousarray(bits), dtype).reshape(shape)
    return ProbeCase(
        probe=probe["name"],
        chip=chip,
        inputs={n: numbers(given[n], dtype) for n, (dtype, _) in wanted},
        outputs=outputs,
    )
