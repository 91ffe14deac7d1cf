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
    """The usable results in a folder.

    Attributes:
        chip: trn1, trn2 or trn3.
        cases: the results by probe.
        left_out: by the name of each probe without a usable result, the reason.
        versions: versions of the packages that ran the probes.
    """

    chip: str
    cases: Mapping[str, ProbeCase]
    left_out: Mapping[str, str]
    versions: Mapping[str, str]


def read_results(folder: Path) -> SiliconResults:
    """Read the results that `run.py` wrote; unusable results are in `left_out`.

    Raises:
        InvalidProgramError: the manifest is missing, damaged, or of another program,
            kit or chip, or no probe is usable.
    """
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
    if not path.is_file():
        raise InvalidProgramError(
            f"there is no {path}",
            remedy="give the folder that the kit's run.py wrote: results/",
        )
    try:
        manifest = json_object(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidProgramError(
            f"{path} is damaged: {error}", remedy="copy it again from the instance"
        ) from error
    if manifest.get("format") != FORMAT:
        raise InvalidProgramError(
            f"{path} was not written by a silicon kit",
            remedy="give the folder that the kit's run.py wrote: results/",
        )
    if manifest.get("kit") != kit_version():
        raise InvalidProgramError(
            f"{path} is of kit {manifest.get('kit')}, this neuronjax has kit"
            f" {kit_version()}",
            remedy="check the results with the neuronjax that wrote the kit, or run"
            " today's kit: neuronjax silicon-kit",
        )
    if not isinstance(manifest.get("probes"), dict):
        raise InvalidProgramError(
            f"{path} is damaged: its probes are no mapping",
            remedy="copy it again from the instance",
        )
    if manifest.get("chip") not in CHIPS:
        raise InvalidProgramError(
            f"{path} is of chip {manifest.get('chip')!r}",
            remedy=f"run the kit again: run.py --chip, with one of: {', '.join(CHIPS)}",
        )
    return manifest


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
