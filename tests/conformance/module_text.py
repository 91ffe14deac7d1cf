"""StableHLO text run by the emulator: for ops and types that no JAX function writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.interpreters import mlir

import neuronjax as nj
from neuronjax.capture.attributes import DTYPES
from neuronjax.capture.decode import decode_module
from neuronjax.execution import interpreter
from neuronjax.hardware import resolve_target
from neuronjax.ir.instruction import InstructionProgram
from neuronjax.lowering import lower
from tests.conformance import bits

NAMES = {
    dtype: name
    for name, dtype in DTYPES.items()
    if not name.startswith(("si", "index"))
}


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def quick(names: Iterable[str], *few: str) -> list:
    """Parameters of which all but a few are slow."""
    return [n if n in few else pytest.param(n, marks=pytest.mark.slow) for n in names]


def tensor(shape: Sequence[int], dtype: Any) -> str:
    """A tensor type as MLIR writes it."""
    return f"tensor<{'x'.join([*map(str, shape), NAMES[np.dtype(dtype)]])}>"


def module(
    arguments: Sequence[str], lines: Sequence[str], results: Sequence[tuple[str, str]]
) -> str:
    """The text of a module whose main takes %a0, %a1, ... of some types.

    Args:
        arguments: types.
        lines: ops.
        results: name and type of each result.
    """
    taken = ", ".join(f"%a{n}: {t}" for n, t in enumerate(arguments))
    names, types = (", ".join(column) for column in zip(*results, strict=True))
    body = "\n  ".join([*lines, f"return {names} : {types}"])
    return f"func.func public @main({taken}) -> ({types}) {{\n  {body}\n}}\n"


def lowered(
    text: str, *, target: str = "trn2", policy: nj.Policy | None = None
) -> InstructionProgram:
    """The instructions of a module."""
    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        program = decode_module(ir.Module.parse(text))
    chosen = policy or nj.Policy()
    return lower(program, target=resolve_target(target), policy=chosen)


def run(
    text: str,
    arrays: Sequence[Any],
    *,
    target: str = "trn2",
    policy: nj.Policy | None = None,
    compiled_only: bool = False,
) -> list[np.ndarray]:
    """What main returns; asserted to be the same op by op, unless `compiled_only`."""
    program = lowered(text, target=target, policy=policy)
    taken = [jnp.asarray(a) for a in arrays]
    compiled = jax.jit(lambda *a: interpreter.run(program, a).results)(*taken)
    if not compiled_only:
        with jax.disable_jit():
            alone = interpreter.run(program, taken).results
        bits.assert_same(list(compiled), list(alone), text)
    return [np.asarray(a) for a in compiled]


def same_numbers(got: np.ndarray, want: np.ndarray, what: str) -> None:
    """Equal bits, but for a NaN's."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    if got.dtype.kind not in "iub":
        is_nan = np.isnan(want.astype(np.float32))
        assert np.array_equal(np.isnan(got.astype(np.float32)), is_nan), what
        word = f"u{got.dtype.itemsize}"
        got, want = (x.view(word)[~is_nan] for x in (got, want))
    wrong = np.flatnonzero(got != want)
    assert not wrong.size, f"{what}: {wrong[:5]}: {got[wrong[:5]]}, {want[wrong[:5]]}"
