"""The safetensors format: a header of JSON, then the bytes of every tensor.

    8 bytes    length N of the header, little-endian
    N bytes    JSON: {name: {"dtype", "shape", "data_offsets": [begin, end]}}
    the rest   the tensors, without holes

Everything that the header says is checked against the file before a byte is read as a
number. The format is described in huggingface/safetensors, README.md.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.ir.json_text import json_object

_PREFIX = 8
_LONGEST_HEADER = 100_000_000  # the limit of the safetensors library
#: The most dimensions of a NumPy array, and the largest size of a dimension.
_MOST_DIMENSIONS, _LARGEST = 64, 2**63 - 1
_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a file, mapped into memory and not copied.

    Raises:
        InvalidProgramError: the file is not what its header says.
    """
    size = path.stat().st_size
    if size < _PREFIX:
        raise _broken(path, f"{size} bytes, too few for the size of a header")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_PREFIX), "little")
        if length > min(size - _PREFIX, _LONGEST_HEADER):
            raise _broken(path, f"a header of {length} bytes in a file of {size}")
        try:
            header = json_object(file.read(length), _unique)
        except ValueError as error:
            raise _broken(path, f"its header: {error}") from None
    start = _PREFIX + length
    entries = {n: e for n, e in header.items() if n != "__metadata__"}
    spans = {n: _span(path, n, entry, size - start) for n, entry in entries.items()}
    _check_without_holes(path, [s for *_, s in spans.values()], size - start)
    if size == start:
        return {n: np.zeros(shape, dtype) for n, (dtype, shape, _) in spans.items()}
    data = np.memmap(path, np.uint8, mode="r", offset=start)
    return {
        name: np.frombuffer(data[begin:end], dtype).reshape(shape)
        for name, (dtype, shape, (begin, end)) in spans.items()
    }


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_name = dict(pairs)
    if len(by_name) < len(pairs):
        raise ValueError("a name occurs twice")
    return by_name


def _span(
    path: Path, name: str, entry: Any, size: int
) -> tuple[np.dtype, tuple[int, ...], tuple[int, int]]:
    """Return the checked dtype, shape and range of bytes of a tensor."""
    keys = ("dtype", "shape", "data_offsets")
    if not isinstance(entry, dict) or any(key not in entry for key in keys):
        raise _broken(path, f"{name!r} lacks one of {', '.join(keys)}")
    word, shape, offsets = (entry[key] for key in keys)
    if not isinstance(word, str) or word not in _DTYPES:
        raise _broken(path, f"{name!r} has dtype {word!r}, which is unknown")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise _broken(path, f"shape or offsets of {name!r} are not whole numbers")
    if len(shape) > _MOST_DIMENSIONS or max(shape, default=0) > _LARGEST:
        raise _broken(path, f"{name!r} has a shape too large for NumPy")
    begin, end = offsets
    dtype = np.dtype(_DTYPES[word])
    needed = math.prod(shape) * dtype.itemsize
    if not begin <= end <= size:
        raise _broken(path, f"{name!r} claims bytes {begin} to {end} of {size}")
    if end - begin != needed:
        what = f"{word}{shape} takes {needed} bytes"
        raise _broken(path, f"{name!r} has {end - begin} bytes; {what}")
    return dtype, tuple(shape), (begin, end)


def _are_sizes(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(n) is int and n >= 0 for n in numbers)


def _check_without_holes(path: Path, spans: list[tuple[int, int]], size: int) -> None:
    at = 0
    for begin, end in sorted(spans):
        if begin != at:
            raise _broken(path, f"tensors overlap or leave a hole at byte {at}")
        at = end
    if at != size:
        raise _broken(path, f"{size - at} bytes belong to no tensor")


def _broken(path: Path, what: str) -> InvalidProgramError:
    return InvalidProgramError(
        f"{path}: {what}",
        op="safetensors",
        remedy="save the tensors again; a file that was cut off cannot be read",
    )
