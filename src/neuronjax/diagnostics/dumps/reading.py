"""Reads tensors by name: mappings, `.npy`, `.npz`, `.safetensors`, folders, Parquet.

Files are untrusted: none is unpickled, and what a header declares is checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from neuronjax.diagnostics.dumps.safetensors import read_safetensors
from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.ir.array_file import read_npy, read_npz

Dump = Mapping[str, Any] | str | Path
_SEEN = ".npy, .npz, .safetensors, .parquet, or a folder of .npy"
_REMEDY = f"save arrays of numbers, as np.save does it; objects are not read: {_SEEN}"


def read_dump(source: Dump) -> dict[str, np.ndarray]:
    """Return tensors by name.

    Args:
        source: a mapping from names to arrays; or the path of a file or a folder. A
            tensor of a folder is called as its file, with the folders inside and
            without the ending.

    Raises:
        InvalidProgramError: no such file, an unknown kind, a file that is not what it
            says, or what is no array of numbers.
        UnsupportedError: Parquet without pyarrow.
    """
    if isinstance(source, Mapping):
        told = "the mapping"
        found = {str(name): _array(str(name), x) for name, x in source.items()}
    else:
        told, found = str(source), _of_path(Path(source))
    if not found:
        raise InvalidProgramError(
            f"{told} holds no tensor", remedy=f"give a mapping, {_SEEN}"
        )
    for name, array in found.items():
        if array.dtype.kind not in "biufV" or array.dtype.names:
            raise InvalidProgramError(
                f"{name!r} of {told} has dtype {array.dtype}",
                remedy="save arrays of real numbers",
            )
    return found


def _array(name: str, x: Any) -> np.ndarray:
    try:
        return np.asarray(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidProgramError(
            f"{name!r} is no array: {error}", remedy="give arrays of NumPy or JAX"
        ) from None


def _of_path(path: Path) -> dict[str, np.ndarray]:
    if path.is_dir():
        return {
            each.relative_to(path).with_suffix("").as_posix(): read_npy(each, _REMEDY)
            for each in sorted(path.rglob("*.npy"))
        }
    if not path.is_file():
        raise InvalidProgramError(
            f"{path}: no such file", remedy=f"name a file: {_SEEN}"
        )
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InvalidProgramError(
            f"{path}: unknown kind of file {path.suffix!r}", remedy=f"give {_SEEN}"
        )
    return reader(path)


# -- Parquet ---------------------------------------------------------------------------

_COLUMNS = ("name", "dtype", "shape", "data")


def _parquet(path: Path) -> dict[str, np.ndarray]:
    """A row for every tensor: name, dtype, shape, and its bytes in row-major order."""
    try:
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UnsupportedError(
            f"{path}: Parquet is read by pyarrow, which is not installed",
            remedy="pip install 'neuronjax[parquet]', or save .npz or .safetensors",
        ) from error
    try:
        rows = parquet.read_table(path).to_pylist()
    except (OSError, ValueError, TypeError) as error:  # ArrowInvalid is a ValueError
        raise InvalidProgramError(
            f"{path}: {error}", remedy="write it with pyarrow.parquet.write_table"
        ) from None
    missing = [c for c in _COLUMNS if rows and c not in rows[0]]
    if missing:
        raise InvalidProgramError(
            f"{path} has no column {', '.join(missing)}",
            remedy=f"one row per tensor, columns {', '.join(_COLUMNS)}: text, text, "
            "list of sizes, bytes in row-major order",
        )
    return {str(row["name"]): _of_row(path, row) for row in rows}


def _of_row(path: Path, row: Mapping[str, Any]) -> np.ndarray:
    name, data, shape = row["name"], row["data"], row["shape"]
    try:
        dtype = np.dtype(getattr(ml_dtypes, str(row["dtype"]), row["dtype"]))
        sizes = tuple(int(n) for n in shape)
    except (TypeError, ValueError) as error:
        raise InvalidProgramError(
            f"{path}: {name!r}: {error}", remedy="give dtypes by NumPy's names"
        ) from None
    needed = math.prod(sizes) * dtype.itemsize
    is_whole = (
        isinstance(data, bytes) and len(data) == needed and min(sizes, default=0) >= 0
    )
    if not is_whole:
        raise InvalidProgramError(
            f"{path}: {name!r} of {dtype}{list(sizes)} needs {needed} bytes",
            remedy="put array.tobytes() in the column data",
        )
    return np.frombuffer(data, dtype).reshape(sizes)


_READERS: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {
    ".npy": lambda path: {path.stem: read_npy(path, _REMEDY)},
    ".npz": lambda path: read_npz(path, _REMEDY),
    ".safetensors": read_safetensors,
    ".parquet": _parquet,
}
