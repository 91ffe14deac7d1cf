"""Movement in NumPy: the bits of the engines, and patches by their indices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from neuronjax.execution.engines.dispatch import Registers, execute
from neuronjax.execution.movement import MOVES, moved
from neuronjax.ir.instruction import Buffer, View
from neuronjax.ir.instruction_set import DmaCopy, Im2col
from neuronjax.ir.program import TensorType
from tests.execution.engines.test_dma import (
    DTYPES,
    any_values,
    counts,
    oracle,
    same,
    windows,
)

#: By name: the kind, its parameters, the shapes of what is moved, starts, the result.
COPIES = {
    "broadcast": ("broadcast", ((1,),), [(3,)], [], (2, 3, 4)),
    "broadcast_exchanged": ("broadcast", ((2, 0),), [(4, 3)], [], (3, 2, 4)),
    "broadcast_of_one": ("broadcast", ((),), [()], [], (2, 3)),
    "reshape": ("reshape", (), [(2, 6)], [], (3, 4)),
    "transpose": ("transpose", ((2, 0, 1),), [(2, 3, 4)], [], (4, 2, 3)),
    "transpose_of_one": ("transpose", ((),), [()], [], ()),
    "slice": ("slice", ((1, 0), (6, 4), (2, 3)), [(7, 4)], [], (3, 2)),
    "pad": ("pad", ((1, -2), (-1, 2), (2, 1)), [(3, 4), ()], [], (7, 7)),
    "pad_leaves_nothing": ("pad", ((-3,), (1,), (0,)), [(3,), ()], [], (1,)),
    "pad_of_nothing": ("pad", ((1,), (2,), (3,)), [(0,), ()], [], (3,)),
    "concatenate": ("concatenate", ((1,),), [(2, 3), (2, 1), (2, 0)], [], (2, 4)),
    "reverse": ("reverse", ((0, 2),), [(2, 3, 4)], [], (2, 3, 4)),
    "dynamic_slice": ("dynamic_slice", ((2, 3),), [(5, 4)], [1, 9], (2, 3)),
    "dynamic_slice_before": ("dynamic_slice", ((2, 3),), [(5, 4)], [-7, 1], (2, 3)),
    "dynamic_update_slice": (
        "dynamic_update_slice",
        (),
        [(5, 4), (2, 3)],
        [7, -2],
        (5, 4),
    ),
}


@pytest.mark.slow_cases("broadcast_*", "pad_*", "dynamic_slice_before", "reverse")
@pytest.mark.parametrize("name", COPIES)
def test_the_engines_move_the_same_bits(name):
    kind, parameters, shapes, starts, result = COPIES[name]
    assert {case[0] for case in COPIES.values()} == set(MOVES)
    for dtype in (*DTYPES, "uint8"):
        arrays = [any_values(shape, dtype) for shape in shapes]
        arrays += [np.int32(start) for start in starts]
        types = [TensorType(x.shape, x.dtype) for x in arrays]
        written = Buffer(9, TensorType(result, jnp.dtype(dtype)))
        i = DmaCopy(
            operands=tuple(View(Buffer(n, t)) for n, t in enumerate(types)),
            results=(written,),
            engine="dma",
            kind=kind,
            parameters=parameters,
        )
        registers = Registers(jnp.float32(-0.0), jnp.uint32(0))
        [want] = jax.jit(lambda *x, i=i, r=registers: execute(i, x, r))(*arrays)
        same(moved(i, arrays), want)


@settings(max_examples=50, deadline=None)
@given(windows(), st.sampled_from(DTYPES), st.integers(1, 2), st.integers(1, 3))
def test_patches_are_what_the_indices_say(case, dtype, groups, channels):
    window, spatial = case
    assume(0 not in tuple(counts(window, spatial)))
    x = any_values((groups, 2, *spatial, channels), dtype)
    want = oracle(x, window)
    operand, result = (
        Buffer(n, TensorType(a.shape, a.dtype)) for n, a in enumerate((x, want))
    )
    i = Im2col(
        operands=(View(operand),), results=(result,), engine="dma", window=window
    )
    same(moved(i, [x]), want)
