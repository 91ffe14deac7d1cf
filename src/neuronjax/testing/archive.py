"""Files that hold arrays: `.npz`, the same bytes for the same arrays on every host.

Entries in order of their names, stored and not compressed (compressors differ), with a
fixed date. Arrays of dtypes that NumPy alone does not know are kept as unsigned
integers; their dtype's name is told elsewhere. Written beside the target and moved into
place, so that a reader sees the old file or the new one.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from neuronjax.errors import InvalidProgramError

_DATE = (1980, 1, 1, 0, 0, 0)
_UNIX = 3


def npz_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The file's content; every array C-ordered and little-endian."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            entry = zipfile.ZipInfo(f"{name}.npy", _DATE)
            entry.create_system, entry.external_attr = _UNIX, 0o644 << 16
            archive.writestr(entry, _npy_bytes(arrays[name]))
    return out.getvalue()


def _npy_bytes(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    array = array.astype(array.dtype.newbyteorder("<"), order="C")
    np.lib.format.write_array(out, array, version=(1, 0), allow_pickle=False)
    return out.getvalue()


def sha256(data: bytes | np.ndarray) -> str:
    """In hexadecimal; of an array its elements' bytes in row-major order."""
    raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
    return hashlib.sha256(raw).hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file that nobody can see half of."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InvalidProgramError(
            f"{path} cannot be written: {error.strerror}",
            remedy="make the folder writable, or name another",
        ) from error
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
