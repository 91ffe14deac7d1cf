"""The files of a golden, which share one name.

    NAME.json      description: target, policy, leaves with their hashes, provenance
    NAME.mlirbc    the program, a StableHLO portable artifact
    NAME.npz       inputs, outputs or samples of them
    inputs/HASH    bytes of a larger input, which all goldens of the folder share

The JSON file is written last and holds the hashes of the others, so an incomplete or
edited set is detected. Arrays are stored as unsigned integers of their width.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from neuronjax.errors import InvalidProgramError, NeuronJaxError
from neuronjax.ir.array_file import read_npz
from neuronjax.ir.json_text import json_object
from neuronjax.policy import Policy, Rule
from neuronjax.testing.archive import npz_bytes, sha256, write_atomically
from neuronjax.testing.bits import LeafDifference, compared, figures_text
from neuronjax.testing.source_lines import EditedLines, SourceBlock, SourceLines

FORMAT, VERSION = "neuronjax-golden", 2
#: Outputs above WHOLE_BYTES are stored as a hash and SAMPLES elements.
WHOLE_BYTES, SAMPLES = 1 << 14, 512
#: Inputs of more bytes are stored once for all goldens of a folder.
OWN_BYTES = 1 << 12
_PACKAGES = ("neuronjax", "jax", "jaxlib", "numpy", "ml_dtypes")
_REMEDY = "make the golden anew: pytest --neuronjax-update-golden"


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of the arguments or results."""

    path: str  # its path in the pytree, "params/w"
    dtype: str  # the name of the dtype
    shape: tuple[int, ...]
    sha256: str  # the hash of its bytes
    seed: int | None = None  # of an input that is drawn and not stored
    #: Its norm, range and first values, for reviewers.
    figures: str | None = dataclasses.field(default=None, compare=False)

    @classmethod
    def of(cls, path: str, array: np.ndarray, seed: int | None = None) -> Leaf:
        return cls(path, array.dtype.name, array.shape, sha256(array), seed)

    def shown(self, array: np.ndarray) -> Leaf:
        """Return the description with norm, range and first values of `array`."""
        return dataclasses.replace(self, figures=figures_text(array))

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def sampled(self) -> np.ndarray:
        """The flat indices of the elements of an output that are stored."""
        if self.size * jnp.dtype(self.dtype).itemsize <= WHOLE_BYTES:
            return np.arange(self.size)
        return np.linspace(0, self.size - 1, SAMPLES).astype(np.int64)

    def array(self, codes: np.ndarray) -> np.ndarray:
        """Return the elements that have the bits `codes` in this leaf's dtype."""
        return np.ascontiguousarray(codes).view(jnp.dtype(self.dtype))

    def difference(self, array: np.ndarray, kept: np.ndarray) -> LeafDifference | None:
        """Return how an array differs from this leaf, or None. `kept` has the stored
        bits of the elements at `sampled`."""
        now = Leaf.of(self.path, array)
        if (now.dtype, now.shape, now.sha256) == (self.dtype, self.shape, self.sha256):
            return None
        at = self.sampled
        is_whole = at.size == self.size
        if is_whole or (now.dtype, now.shape) != (self.dtype, self.shape):
            expected = np.zeros(self.shape, jnp.dtype(self.dtype))
            if is_whole:
                expected = self.array(kept).reshape(self.shape)
            return compared(self.path, array, expected)
        differing = compared(self.path, array.reshape(-1)[at], self.array(kept))
        if differing is None:
            what = f"the hash of all {self.size} elements differs, but none of"
            return LeafDifference(path=self.path, what=f"{what} {SAMPLES} samples does")
        index = np.unravel_index(int(at[differing.index[0]]), self.shape)
        return dataclasses.replace(differing, index=tuple(int(i) for i in index))


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoldenFile:
    """The content of a golden.

    Attributes:
        program: the portable artifact.
        fingerprint: the program's fingerprint.
        rounding_seed: the call index of stochastic rounding.
        x64: whether 64-bit types were on.
        inputs: the arguments, flat.
        outputs: the results, flat.
        arrays: the bits of inputs that are not drawn from a seed, by "input/N", and of
            the stored elements of outputs, by "output/N".
        provenance: versions of packages, Python, the machine.
        sources: the functions from which the program's ops come; None in goldens older
            than this field.
    """

    program: bytes
    fingerprint: str
    target: str
    policy: Policy
    rounding_seed: int
    x64: bool
    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    arrays: Mapping[str, np.ndarray]
    provenance: Mapping[str, str]
    sources: SourceLines | None = None

    def same_but_provenance(self, other: GoldenFile) -> bool:
        skipped = ("provenance", "program", "arrays", "sources")
        mine, others = (
            {k: v for k, v in vars(x).items() if k not in skipped}
            for x in (self, other)
        )
        if mine != others:
            return False
        if self.sources is None or other.sources is None:
            return self.sources is other.sources
        return not EditedLines.between(self.sources, other.sources)

    def write(self, path: Path) -> None:
        """Write the files; every process writes the same bytes for a golden."""
        own = dict(self.arrays)
        for i, leaf in enumerate(self.inputs):
            if leaf.seed is None and own[f"input/{i}"].nbytes > OWN_BYTES:
                file = _shared(path, leaf)
                data = own.pop(f"input/{i}").tobytes()
                if not file.exists():
                    write_atomically(file, data)
        arrays = npz_bytes(own)
        # All fields are written, also those with default values, so that a change of a
        # default changes no old golden.
        fields = dataclasses.fields(self.policy)
        policy = {f.name: getattr(self.policy, f.name) for f in fields}
        policy["rules"] = [{**r.selectors, **r.overrides} for r in self.policy.rules]
        policy["placement"] = list(self.policy.placement)
        described = {
            "format": FORMAT,
            "version": VERSION,
            "target": self.target,
            "policy": policy,
            "rounding_seed": self.rounding_seed,
            "x64": self.x64,
            "program": {"sha256": sha256(self.program), "same_as": self.fingerprint},
            "arrays": {"sha256": sha256(arrays)},
            "inputs": [_described(leaf) for leaf in self.inputs],
            "outputs": [_described(leaf) for leaf in self.outputs],
            "provenance": dict(self.provenance),
        }
        if self.sources is not None:
            described["sources"] = dict(self.sources.files)
        write_atomically(beside(path, ".mlirbc"), self.program)
        write_atomically(beside(path, ".npz"), arrays)
        text = json.dumps(described, indent=1) + "\n"
        write_atomically(beside(path, ".json"), text.encode())


def read(path: Path) -> GoldenFile:
    """Read the files that `GoldenFile.write` wrote; `path` has no ending."""
    try:
        text = beside(path, ".json").read_bytes()
        if b"\n<<<<<<< " in text:
            raise InvalidProgramError(
                f"golden {path}: {path.name}.json holds both sides of a merge",
                remedy="take all three files from one side, git checkout --ours or "
                "--theirs, and run the test",
            )
        described = json_object(text)
        program = beside(path, ".mlirbc").read_bytes()
        arrays = beside(path, ".npz").read_bytes()
    except (OSError, ValueError) as error:
        raise InvalidProgramError(f"golden {path}: {error}", remedy=_REMEDY) from error
    try:
        _check(path, described, program, arrays)
        stored = read_npz(arrays)
        fields = described["policy"]
        rules = tuple(Rule(**rule) for rule in fields["rules"])
        placement = tuple(fields["placement"])
        inputs = tuple(map(_leaf, described["inputs"]))
        for i, leaf in enumerate(inputs):
            if leaf.seed is None and f"input/{i}" not in stored:
                stored[f"input/{i}"] = _read_shared(path, leaf)
        return GoldenFile(
            program=program,
            fingerprint=described["program"]["same_as"],
            target=described["target"],
            policy=Policy(**{**fields, "rules": rules, "placement": placement}),
            rounding_seed=described["rounding_seed"],
            x64=described["x64"],
            inputs=inputs,
            outputs=tuple(map(_leaf, described["outputs"])),
            arrays=stored,
            provenance=described["provenance"],
            sources=_sources(described.get("sources")),
        )
    except NeuronJaxError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidProgramError(
            f"golden {path}: {path.name}.json lacks a field, or has a field in another "
            f"form: {type(error).__name__}: {error}",
            remedy=_REMEDY,
        ) from error


def _check(path: Path, described: Any, program: bytes, arrays: bytes) -> None:
    if described.get("format") != FORMAT:
        raise InvalidProgramError(f"{path}.json is no golden's file", remedy=_REMEDY)
    if described["version"] > VERSION:
        raise InvalidProgramError(
            f"golden {path} has version {described['version']}, this neuronjax reads "
            f"up to {VERSION}",
            remedy="install a newer neuronjax",
        )
    for ending, data in (("program", program), ("arrays", arrays)):
        if sha256(data) != described[ending]["sha256"]:
            raise InvalidProgramError(
                f"golden {path}: the hash of its {ending} is not that in "
                f"{path.name}.json",
                remedy="take all three files from one commit, or " + _REMEDY,
            )


def _shared(path: Path, leaf: Leaf) -> Path:
    return path.parent / "inputs" / leaf.sha256


def _read_shared(path: Path, leaf: Leaf) -> np.ndarray:
    file = _shared(path, leaf)
    data = file.read_bytes() if file.is_file() else b""
    if sha256(data) != leaf.sha256:
        raise InvalidProgramError(
            f"golden {path}: {file} does not hold the argument {leaf.path}",
            remedy="take the file from the commit of the golden, or " + _REMEDY,
        )
    return np.frombuffer(data, f"u{jnp.dtype(leaf.dtype).itemsize}")


def beside(path: Path, ending: str) -> Path:
    """Return the path with an ending appended, since goldens' names may have dots."""
    return path.with_name(path.name + ending)


def provenance() -> dict[str, str]:
    """Return the versions of the packages and of Python, and the machine."""
    versions = {name: _version(name) for name in _PACKAGES}
    machine = f"{platform.system()} {platform.machine()}"
    return {**versions, "python": platform.python_version(), "machine": machine}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _described(leaf: Leaf) -> dict[str, Any]:
    return {k: v for k, v in dataclasses.asdict(leaf).items() if v is not None}


def _leaf(fields: dict[str, Any]) -> Leaf:
    return Leaf(**{**fields, "shape": tuple(fields["shape"])})


def _sources(files: dict[str, list[Any]] | None) -> SourceLines | None:
    if files is None:
        return None
    return SourceLines({f: tuple(SourceBlock(*b) for b in files[f]) for f in files})
