"""The child that runs a traced candidate: its instructions, and nothing of its Python.

It is a fork of `nursery`, in a folder that holds the program and the arguments. It
reads what the judge wrote and writes what the judge reads, so that both may be pickles.
"""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

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


def main() -> NoReturn:
    """Does the job in the working folder."""
    warnings.simplefilter("ignore")
    found = values(pickle.loads(Path(GIVEN).read_bytes()))
    Path("unfinished").write_bytes(pickle.dumps(found))
    Path("unfinished").rename(DONE)
    os._exit(0)
