"""A traced kernel comes back from its file as it was, and nothing else comes back."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neuronjax import nki
from neuronjax.errors import InvalidProgramError
from neuronjax.ir.kernel import KernelInstruction, KernelProgram
from neuronjax.ir.kernel_file import read_program, write_program
from neuronjax.nki import isa as nisa, language as nl
from neuronjax.nki.kernel import TracedKernel
from neuronjax.nki.stored_kernel import StoredKernel


def scaled(x: Any, factor: float) -> Any:
    """Constants, immediates, a matmul, a transpose."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    ones = nl.load(nl.shared_constant(np.eye(64, dtype=np.float32)))
    tile = nl.load(x)
    product = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(product, ones, tile)
    nisa.tensor_scalar(tile, product, nl.multiply, factor)
    nl.store(out, tile)
    return out


def looped(x: Any) -> Any:
    """A loop of the device, and an access that only the run knows."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.dynamic_range(4):
        tile = nl.ndarray((1, 16), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[nl.ds(i, 1)])
        nisa.activation(tile, nl.exp, tile)
        nisa.dma_copy(dst=out[nl.ds(i, 1)], src=tile)
    return out


X = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
KERNELS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "constants": (scaled, (X, 1.5)),
    "a loop": (looped, (X[:4, :16],)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_read_is_what_was_written(name: str) -> None:
    function, arguments = KERNELS[name]
    kernel = nki.jit(function)
    traced = kernel.traced(*arguments)
    data = write_program(traced.program)
    program = read_program(data)
    assert write_program(program) == data
    assert [_shown(i) for i in program.body.walk()] == [
        _shown(i) for i in traced.program.body.walk()
    ]
    arrays = [a for a in arguments if isinstance(a, np.ndarray)]
    stored = StoredKernel(TracedKernel(program, traced.tree, traced.dtypes))
    np.testing.assert_array_equal(stored(*arrays), kernel(*arguments))


def _shown(i: KernelInstruction) -> tuple[Any, ...]:
    """An instruction without what is compared by identity."""
    accesses = [(a.storage.number, a.dtype, a.offset, a.pattern) for a in i.accesses]
    fields = (i.name, i.engine, i.parameters, dict(i.attributes), i.location, i.ordinal)
    return (*fields, accesses, i.loops, i.forms)


def test_another_shape_is_refused() -> None:
    traced = nki.jit(scaled).traced(X, 2.0)
    with pytest.raises(InvalidProgramError, match="was traced for"):
        StoredKernel(traced)(X[:32])


def _edited(data: bytes, change: Callable[[dict], None]) -> bytes:
    described = json.loads(zipfile.ZipFile(io.BytesIO(data)).read("program.json"))
    change(described)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("program.json", json.dumps(described))
    return out.getvalue()


EDITS: dict[str, Callable[[dict], Any]] = {
    "another version": lambda d: d.update(version=99),
    "no body": lambda d: d.pop("body"),
    "an operand that is not there": lambda d: d["results"].append(10**6),
    "a storage that is not there": lambda d: d["operands"].append([99, "a", 0, []]),
    "text for a number": lambda d: d.update(registers="many"),
    "a missing constant": lambda d: None,
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_is_no_such_file_is_refused(edit: str) -> None:
    program: KernelProgram = nki.jit(scaled).trace(X, 2.0)
    data = _edited(write_program(program), EDITS[edit])
    with pytest.raises(InvalidProgramError, match="not the file of a traced kernel"):
        read_program(data)


@pytest.mark.parametrize("data", [b"", b"PK", b"\x80\x04pickle"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidProgramError, match="not the file of a traced kernel"):
        read_program(data)
