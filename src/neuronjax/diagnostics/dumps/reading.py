"""Tensors by name, read from mappings, `.npy`, `.npz`, `.safetensors` and folders.

Files are untrusted: nothing is unpickled, and what a header declares is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from neuronjax.diagnostics.dumps.safetensors import read_safetensors
from neuronjax.errors import InvalidProgramError
from neuronjax.ir.array_file import read_npy, read_npz

Dump = Mapping[str, Any] | str | Path
_SEEN = ".npy, .npz, .safetensors, or a folder of .npy"
_REMEDY = f"save arrays of numbers, without Python objects, as {_SEEN}"


def read_dump(source: Dump) -> dict[str, np.ndarray]:
    """Return the tensors of `source` by name.

    Args:
        source: a mapping from names to arrays; or the path of a file or a folder. A
            tensor in a folder is named by the path of its file inside the folder,
            without the ending.

    Raises:
        InvalidProgramError: the file is missing, malformed or of an unknown format, or
            a value is no array of numbers.
    """
    if isinstance(source, Mapping):
        source_name = "the mapping"
        arrays = {str(name): _array(str(name), x) for name, x in source.items()}
    else:
        source_name, arrays = str(source), _of_path(Path(source))
    if not arrays:
        raise InvalidProgramError(
            f"{source_name} holds no tensor", remedy=f"give a mapping, {_SEEN}"
        )
    for name, array in arrays.items():
        if array.dtype.kind not in "biufV" or array.dtype.names:
            raise InvalidProgramError(
                f"{name!r} of {source_name} has dtype {array.dtype}",
                remedy="save arrays of real numbers",
            )
    return arrays


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


_READERS: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {
    ".npy": lambda path: {path.stem: read_npy(path, _REMEDY)},
    ".npz": lambda path: read_npz(path, _REMEDY),
    ".safetensors": read_safetensors,
}
