"""The child that runs a traced candidate: its instructions, and nothing of its Python.

Run as `python -m`, in a folder that holds the program and the arguments. It reads what
the judge wrote and writes what the judge reads, so that both may be pickles.
"""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from neuronjax.errors import NeuronJaxError
from neuronjax.execution.kernels.running import FreshMemory
from neuronjax.ir.kernel_file import read_program
from neuronjax.nki.bound_call import TracedKernel
from neuronjax.nki.stored_kernel import StoredKernel

GIVEN, DONE = "runs.pickle", "values.pickle"


class Failed(NamedTuple):
    """An error of a run; the fields are those of NeuronJaxError."""

    what: str
    op: str | None
    location: str | None
    remedy: str | None


def values(given: tuple[Any, ...]) -> list[Any]:
    """What every run returned, up to the first that failed, and how."""
    program, tree, dtypes, runs = given
    stored = StoredKernel(TracedKernel(read_program(program), tree, dtypes))
    kernels: dict[FreshMemory, StoredKernel] = {}
    done: list[Any] = []
    for arguments, memory in runs:
        kernel = kernels.setdefault(memory, stored.in_memory(memory))
        try:
            done.append(kernel(*arguments))
        except NeuronJaxError as error:
            failed = Failed(error.what, error.op, error.location, error.remedy)
            return [*done, failed]
    return done


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    # Of the module by its name, for pickles hold the names of classes.
    from neuronjax.diagnostics.judging import values_child

    found = values_child.values(pickle.loads(Path(GIVEN).read_bytes()))
    Path("unfinished").write_bytes(pickle.dumps(found))
    Path("unfinished").rename(DONE)
