"""Every function that reads a file, beside `nj.load`: a good file, and how it is read.

Programs of `nj.load` are in `tests/capture/test_malformed.py`. Where a file is guarded
by the hash that another holds, `sign` makes the hashes right again: whoever changes the
one can change the other.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import neuronjax as nj
from neuronjax import nki
from neuronjax.cli import sources
from neuronjax.diagnostics.dumps.reading import read_dump
from neuronjax.diagnostics.judging import tracing, tracing_child, values_file, verdict
from neuronjax.diagnostics.judging.sandbox import Ended
from neuronjax.diagnostics.run_files import read_run, written_run
from neuronjax.ir.array_file import read_npy
from neuronjax.ir.kernel_file import read_program, write_program
from neuronjax.nki import isa as nisa, language as nl, neuron_profile
from neuronjax.nki.releases.uses import uses_of_file
from neuronjax.testing import conformance, golden_file
from neuronjax.testing.archive import npz_bytes, sha256
from neuronjax.testing.silicon import inputs
from neuronjax.testing.silicon.kit import FORMAT, described, kit_version, outputs_of
from neuronjax.testing.silicon.results import read_results
from tests.testing import vector_files

A = np.arange(24, dtype=np.float32).reshape(4, 6)
ARRAYS = {"a": A, "b": np.asarray([1.5, -2.0], ml_dtypes.bfloat16), "c": np.int32(7)}
GOLDEN = Path(__file__).parent.parent / "golden" / "golden" / "recurrent_fp32"


@dataclass(frozen=True)
class Loader:
    """A kind of file.

    Attributes:
        write: makes a good one in a folder; returns the file that is to be mutated.
        load: reads it.
        sign: makes the hashes of it in other files right.
        others: errors of its own beside ours.
    """

    write: Callable[[Path], Path]
    load: Callable[[Path], Any]
    sign: Callable[[Path], None] = lambda path: None
    others: tuple[type[Exception], ...] = ()


def written(name: str, data: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return write


# ---- Arrays.


def _saved(function: Callable[..., None], name: str, *args: Any, **kwargs: Any) -> Any:
    def write(folder: Path) -> Path:
        function(folder / name, *args, **kwargs)
        return folder / name

    return write


def safetensors_bytes(tensors: dict[str, np.ndarray]) -> bytes:
    header, data = {"__metadata__": {"format": "np"}}, b""
    words = {"float32": "F32", "bfloat16": "BF16", "int32": "I32"}
    for name, array in tensors.items():
        end = len(data) + array.nbytes
        about = {"shape": list(array.shape), "data_offsets": [len(data), end]}
        header[name] = {"dtype": words[array.dtype.name], **about}
        data += array.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _read_inputs(path: Path) -> Any:
    types = [np.zeros(a.shape, a.dtype) for a in (A, A)]
    return sources.with_values(types, ["a", "a"], path, 0)


# ---- Goldens, vectors, results of chips.


def _golden(ending: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        for end in (".json", ".mlirbc", ".npz"):
            data = golden_file.beside(GOLDEN, end).read_bytes()
            (folder / f"g{end}").write_bytes(data)
        return folder / f"g{ending}"

    return write


def _sign_golden(path: Path) -> None:
    about = path.with_suffix(".json")
    found = json.loads(about.read_bytes())
    kind = {".npz": "arrays", ".mlirbc": "program"}[path.suffix]
    found[kind]["sha256"] = sha256(path.read_bytes())
    about.write_text(json.dumps(found))


def _vectors(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        case = conformance.Case(
            family="casts",
            name="one",
            function="cast",
            parameters={"format": "bfloat16"},
            inputs={"x": A.view(np.uint32)},
            outputs={"codes": A.astype(ml_dtypes.bfloat16).view(np.uint16)},
        )
        vector_files.write(folder, [case])
        return folder / name

    return write


def _sign_vectors(path: Path) -> None:
    about = path.with_name(conformance.MANIFEST)
    found = json.loads(about.read_bytes())
    found["files"][path.name] = sha256(path.read_bytes())
    about.write_text(json.dumps(found))


def _silicon(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        given = {
            n: sha256(inputs.make(probe["name"], n, how))
            for n, (_, how) in probe["inputs"].items()
        }
        (folder / file).write_bytes(arrays)
        record = {"inputs": given, "file": file, "sha256": sha256(arrays)}
        manifest = {
            "format": FORMAT,
            "kit": kit_version(),
            "chip": chip,
            "probes": {probe["name"]: record},
        }
        (folder / "manifest.json").write_text(json.dumps(manifest))
        return folder / name.format(file=file)

    probe = next(iter(described().values()))
    chip, file = probe["chips"][0], f"{probe['name']}.npz"
    bits = {
        n: np.zeros(shape, f"u{np.dtype(getattr(ml_dtypes, d, d)).itemsize}")
        for n, (shape, d) in outputs_of(probe["name"]).items()
    }
    arrays = npz_bytes(bits)
    return write


def _sign_silicon(path: Path) -> None:
    about = path.with_name("manifest.json")
    found = json.loads(about.read_bytes())
    found["probes"][path.stem]["sha256"] = sha256(path.read_bytes())
    about.write_text(json.dumps(found))


# ---- Kernels.


@nki.jit
def looped(x):
    """A loop of the device, a constant, an access that only the run knows."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    ones = nl.load(nl.shared_constant(np.ones((1, 16), np.float32)))
    for i in nl.dynamic_range(4):
        tile = nl.ndarray((1, 16), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[nl.ds(i, 1)])
        nisa.tensor_tensor(tile, tile, ones, nl.add)
        nisa.dma_copy(dst=out[nl.ds(i, 1)], src=tile)
    return out


_KERNEL = write_program(looped.traced(np.ones((4, 16), np.float32)).program)
_STATUS = {
    "what": "",
    "kernel": "looped",
    "forbidden": [],
    "arguments": {"tuple": [{"shape": [4, 16], "dtype": "float32"}]},
    "results": {"slot": 0},
    "dtypes": ["float32"],
}


def _read_status(path: Path) -> Any:
    held = {tracing_child.STATUS: path.read_bytes(), tracing_child.PROGRAM: _KERNEL}
    return tracing.read(Ended(how="", files=held, printed=""), path)


def _view(path: Path) -> None:
    shown = ["view", "-n", str(path), "--output-format", "summary-text"]
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        status = neuron_profile.main(shown)
    if status:
        raise nj.InvalidProgramError(told.getvalue())


_PROBLEM = verdict.Problem(rule="a", location="b:1", message="c", remedy="d")
_VERDICT = verdict.KernelVerdict(
    candidate="k.py", kernel="k", target="trn2", accepted=True, correct=True,
    tolerance="1e-3", limits=(_PROBLEM,),
)  # fmt: skip
_TEXT, _ARRAYS = values_file.stored({"done": [A, {"n": 1.5}], "failed": None})


def _run_file(folder: Path) -> Path:
    with written_run(folder / "x.jsonl", {"step": 0, "policy": "bf16"}) as write:
        for step in range(4):
            write({"step": step, "loss": 0.1 * step})
    return folder / "x.jsonl"


LOADERS: dict[str, Loader] = {
    "npy": Loader(_saved(np.save, "x.npy", A), read_dump),
    "npz": Loader(_saved(np.savez, "x.npz", **ARRAYS), read_dump),
    "npz, packed": Loader(_saved(np.savez_compressed, "x.npz", **ARRAYS), read_dump),
    "safetensors": Loader(
        written("x.safetensors", safetensors_bytes({k: ARRAYS[k] for k in "ab"})),
        read_dump,
    ),
    "inputs": Loader(_saved(np.savez, "x.npz", **ARRAYS), _read_inputs),
    "constant": Loader(_saved(np.save, "x.npy", A), read_npy),
    "golden": Loader(
        _golden(".json"), lambda path: golden_file.read(path.with_suffix(""))
    ),
    "golden's arrays": Loader(
        _golden(".npz"),
        lambda path: golden_file.read(path.with_suffix("")),
        _sign_golden,
    ),
    "vectors": Loader(
        _vectors(conformance.MANIFEST), lambda path: conformance.read(path.parent)
    ),
    "vectors' arrays": Loader(
        _vectors("casts.npz"),
        lambda path: conformance.read(path.parent),
        _sign_vectors,
    ),
    "silicon": Loader(
        _silicon("manifest.json"), lambda path: read_results(path.parent)
    ),
    "silicon's arrays": Loader(
        _silicon("{file}"), lambda path: read_results(path.parent), _sign_silicon
    ),
    "run of a study": Loader(_run_file, read_run),
    "neuron profile": Loader(
        written("k.neff", json.dumps({"kernel": "k", "summary": {"a": 1}}).encode()),
        _view,
    ),
    "verdict": Loader(
        written("v.json", _VERDICT.to_json().encode()),
        lambda path: verdict.from_json(path.read_bytes().decode(errors="replace")),
    ),
    "traced kernel": Loader(
        written("k.nkx", _KERNEL), lambda path: read_program(path.read_bytes())
    ),
    "status of a candidate": Loader(
        written("status.json", json.dumps(_STATUS).encode()),
        _read_status,
        others=(tracing.CandidateRefused,),
    ),
    "values of a kernel": Loader(
        written("values.json", _TEXT),
        lambda path: values_file.read(path.read_bytes(), _ARRAYS),
    ),
    "values' arrays": Loader(
        written("values.npz", _ARRAYS),
        lambda path: values_file.read(_TEXT, path.read_bytes()),
    ),
    "source of a kernel": Loader(
        written(
            "k.py", b"import nki.language as nl\n\ndef k(x):\n    nl.load(x[:4])\n"
        ),
        uses_of_file,
    ),
}
