"""Arguments and results of a kernel as two files: JSON, and the bits of the arrays.

The JSON contains the tree as in `types_file`, with a numbered slot for each array, and
the names of the arrays' dtypes. A `.npz` file contains the bits of each array as
unsigned integers of the same width.
"""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from neuronjax.diagnostics.judging import types_file
from neuronjax.errors import InvalidProgramError
from neuronjax.ir.array_file import read_npz
from neuronjax.ir.json_text import json_object
from neuronjax.nki import arguments


def stored(tree: Any) -> tuple[bytes, bytes]:
    """Return (JSON file, .npz file) of `tree`, a tree of arrays and plain values.

    Raises:
        InvalidProgramError: the tree has a value of another type.
    """
    arrays: list[Any] = []
    described = types_file.described(arguments.flatten(tree, arrays))
    held = [
        a if isinstance(a, np.ndarray) else np.asarray(arguments.to_jax(a))
        for a in arrays
    ]
    names = [a.dtype.name for a in held]
    out = io.BytesIO()
    bits = (np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}") for a in held)
    np.savez(out, *bits)
    return json.dumps({"tree": described, "dtypes": names}).encode(), out.getvalue()


def read(text: bytes, arrays: bytes) -> Any:
    """Return the tree of which `stored` made the files `text` (JSON) and `arrays`.

    Raises:
        InvalidProgramError: the files were not written by `stored`.
    """
    try:
        described = json_object(text)
        held = read_npz(arrays)
        found = [
            held[f"arr_{number}"].view(np.dtype(name)).copy()
            for number, name in enumerate(described["dtypes"])
        ]
        return types_file.read(described["tree"], found.__getitem__)
    except types_file.NO_TYPES as error:
        if isinstance(error, InvalidProgramError):
            raise
        raise InvalidProgramError(
            f"the file of the kernel's values cannot be read: {error}",
            remedy="judge the kernel again: the file changed after it was written",
        ) from error
