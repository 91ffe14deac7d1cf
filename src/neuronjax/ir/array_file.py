"""Read `.npy` and `.npz` files from untrusted writers.

Nothing is unpickled, and a header is checked before memory is allocated for it: an
array has as many bytes as its file, and an archive unpacks to a small multiple of its
own size, whatever its entries claim, overlap or compress.
"""

from __future__ import annotations

import errno
import io
import lzma
import math
import os
import stat
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes  # noqa: F401  NumPy then knows the names of its types
import numpy as np

from neuronjax.errors import InvalidProgramError

#: An archive may unpack to this multiple of its size plus this number of bytes.
UNPACKED_RATIO, UNPACKED_BYTES = 4, 1 << 30
_REMEDY = "save arrays of numbers by np.save or np.savez; Python objects are not read"
#: Exceptions that NumPy and zipfile raise for malformed bytes.
BROKEN = (
    *(OSError, ValueError, EOFError, OverflowError, LookupError, TypeError),
    *(RuntimeError, SyntaxError, MemoryError, struct.error, zlib.error, lzma.LZMAError),
    *(tokenize.TokenError, zipfile.BadZipFile, NotImplementedError),
)
_HEADERS: Mapping[tuple[int, int], Callable[..., Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npy(source: Path | bytes, remedy: str = _REMEDY) -> np.ndarray:
    """Return the array of a `.npy` file, given the file or its bytes. Refuse a source
    that is no `.npy` or holds no numbers."""
    try:
        if isinstance(source, bytes):
            return _of_stream(io.BytesIO(source), len(source))
        with regular(source).open("rb") as file:
            return _of_stream(file, source.stat().st_size)
    except BROKEN as error:
        raise _broken(source, error, remedy) from None


def read_npz(source: Path | bytes, remedy: str = _REMEDY) -> dict[str, np.ndarray]:
    """Return the arrays of a `.npz` file by name, given the file or its bytes. Refuse a
    source that is no `.npz`, unpacks to too much, or holds no numbers."""
    try:
        stream = io.BytesIO(source) if isinstance(source, bytes) else regular(source)
        with zipfile.ZipFile(stream) as archive:
            check_unpacked(archive)
            return dict(_of_members(archive))
    except BROKEN as error:
        raise _broken(source, error, remedy) from None


def regular(path: Path) -> Path:
    """Return `path`. Raise `OSError` if `path` does not name a regular file, because a
    device or a pipe may be endless."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError("a device or a pipe, not a file")
    return path


def check_unpacked(archive: zipfile.ZipFile) -> None:
    """Raise `ValueError` if the stated sizes are much larger than the archive."""
    assert archive.fp is not None
    size = archive.fp.seek(0, io.SEEK_END)
    claimed = sum(info.file_size for info in archive.infolist())
    if claimed > UNPACKED_RATIO * size + UNPACKED_BYTES:
        raise ValueError(f"{size} bytes would unpack to {claimed} bytes: too many")


def _of_members(archive: zipfile.ZipFile) -> Iterator[tuple[str, np.ndarray]]:
    for info in archive.infolist():
        if info.is_dir():
            continue
        with archive.open(info) as member:
            name = info.filename.removesuffix(".npy")
            yield name, _of_stream(member, info.file_size)


def _of_stream(file: BinaryIO | Any, size: int) -> np.ndarray:
    """Return one array, or refuse a header whose size differs from that of the data."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of the .npy format is unknown")
    shape, is_fortran, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("the array holds Python objects, which only pickle can read")
    if not dtype.itemsize or dtype.names or dtype.subdtype:
        raise ValueError(f"the array has elements of {dtype}, which are not numbers")
    if any(n < 0 for n in shape):
        raise ValueError(f"the shape {shape} has a negative size")
    needed, available = math.prod(shape) * dtype.itemsize, size - file.tell()
    if needed != available:
        raise ValueError(
            f"{dtype}{list(shape)} takes {needed} bytes, the file has {available}"
        )
    data = file.read(needed)
    array = np.frombuffer(data, dtype) if needed else np.zeros(shape, dtype)
    return array.reshape(shape, order="F" if is_fortran else "C")


def _broken(
    source: Path | bytes, error: BaseException, remedy: str
) -> InvalidProgramError:
    name = "the file" if isinstance(source, bytes) else source
    reason = str(error) or type(error).__name__
    return InvalidProgramError(f"{name}: {reason}", remedy=remedy)
