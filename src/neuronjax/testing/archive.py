"""Files `.npz`, with the same bytes for the same arrays on every host.

Entries are sorted by name and stored as NumPy stores them: not compressed, with a fixed
date. Callers pass arrays of ml_dtypes' dtypes as unsigned integers, and record the
dtype themselves. A file is written beside the target and moved into place, so that a
reader sees either the old file or the new one.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from neuronjax.errors import InvalidProgramError


def npz_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the bytes of an `.npz` file of little-endian, C-ordered arrays."""
    out = io.BytesIO()
    ordered = sorted(arrays.items())
    little = {n: a.astype(a.dtype.newbyteorder("<"), order="C") for n, a in ordered}
    np.savez(out, **little)  # type: ignore[arg-type]
    return out.getvalue()


def sha256(data: bytes | np.ndarray) -> str:
    """Return the hash, in hexadecimal, of bytes or of an array's bytes in C order."""
    raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
    return hashlib.sha256(raw).hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
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
