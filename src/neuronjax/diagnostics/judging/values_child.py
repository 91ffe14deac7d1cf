"""The child process that runs a candidate's instructions, but none of its Python code.

`nursery` forks the child, in a folder that contains the program and the arguments. The
child first writes the arrays of the results, and then the file with their tree.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, NoReturn

from neuronjax.diagnostics.judging import types_file, values_file
from neuronjax.errors import NeuronJaxError
from neuronjax.execution.kernels.running import FreshMemory
from neuronjax.ir.kernel_file import read_program
from neuronjax.nki.bound_call import TracedKernel
from neuronjax.nki.stored_kernel import StoredKernel

PROGRAM = "program.nkx"
GIVEN, GIVEN_ARRAYS = "runs.json", "runs.npz"
DONE, DONE_ARRAYS = "values.json", "values.npz"


def values(program: bytes, given: dict[str, Any]) -> dict[str, Any]:
    """Return {"done": results before any error, "failed": error fields or None}."""
    tree = types_file.read(given["results"])
    traced = TracedKernel(read_program(program), tree, tuple(given["dtypes"]))
    stored = StoredKernel(traced)
    kernels: dict[FreshMemory, StoredKernel] = {}
    done: list[Any] = []
    for arguments, fields in given["runs"]:
        memory = FreshMemory(*fields)
        kernel = kernels.setdefault(memory, stored.in_memory(memory))
        try:
            done.append(kernel(*arguments))
        except NeuronJaxError as error:
            failed = [error.what, error.op, error.location, error.remedy]
            return {"done": done, "failed": failed}
    return {"done": done, "failed": None}


def main() -> NoReturn:
    """Run the program in the working folder and write the results."""
    warnings.simplefilter("ignore")
    files = (Path(name).read_bytes() for name in (GIVEN, GIVEN_ARRAYS))
    found = values(Path(PROGRAM).read_bytes(), values_file.read(*files))
    text, arrays = values_file.stored(found)
    Path(DONE_ARRAYS).write_bytes(arrays)
    Path("unfinished").write_bytes(text)
    Path("unfinished").rename(DONE)
    os._exit(0)
