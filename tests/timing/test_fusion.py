"""What becomes one pass of an engine, on programs captured from JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.hardware import resolve_target
from neuronjax.timing.fusion import fuse
from neuronjax.timing.passes import ReducingPass
from neuronjax.timing.pricing import priced
from neuronjax.timing.work import Core

F32, BF16 = jnp.float32, jnp.bfloat16
CORE = Core.of(resolve_target("trn2"), 1)


def steps_of(function, *shapes, dtype=F32):
    arguments = [jax.ShapeDtypeStruct(s, dtype) for s in shapes]
    program = nj.jit(function, target="trn2", policy="fp32").lower(*arguments)
    block = program.captured.instructions.main
    return fuse(block, program.captured.instructions.functions, CORE)


def names(fused):
    return [
        getattr(s.instruction, "function", "")
        or getattr(s.instruction, "op", "")
        or s.instruction.name
        for s in fused.steps
    ]


def test_constants_broadcasts_and_reshapes_are_no_steps():
    fused = steps_of(lambda x: (2 * x).reshape(4, 32)[None], (8, 16))
    (step,) = fused.steps
    assert step.form == "tensor_scalar"
    assert [m.name for m in step.members] == ["tensor_tensor"]
    assert fused.access[fused.results[0]].roots == tuple(step.results)


def test_two_operations_with_scalars_are_one_pass():
    assert len(steps_of(lambda x: (x + 1) * 3, (8, 16)).steps) == 1
    assert len(steps_of(lambda x: ((x + 1) * 3 + 5) * 7, (8, 16)).steps) == 2


def test_scale_and_bias_come_with_an_activation():
    (step,) = steps_of(lambda x: jnp.exp(x * 2 + 1), (8, 16)).steps
    assert step.form == "activation"
    assert len(step.members) == 3


def test_an_operation_after_an_activation_is_a_pass_of_its_own():
    assert names(steps_of(lambda x: jnp.exp(x) * 2, (8, 16))) == [
        "exponential",
        "multiply",
    ]


def test_a_value_that_is_read_twice_is_not_absorbed():
    fused = steps_of(lambda x: (jnp.exp(x + 1), x + 1), (8, 16))
    assert len(fused.steps) == 2


def test_softmax_is_three_passes_over_the_rows():
    fused = steps_of(lambda x: jax.nn.softmax(x, -1), (8, 16))
    full = [s for s in fused.steps if fused.types[s.seen].shape == (8, 16)]
    wide = [
        s
        for s in fused.steps
        if any(fused.types[r].shape == (8, 16) for r in fused.reads(s))
    ]
    # The maximum; exp(x - max) with its sum; the division.
    assert [s.form for s in wide] == ["reduce", "activation", "tensor_scalar"]
    assert [s.reduces for s in full] == [True, False]
    assert [m.name for m in full[0].members] == [
        "tensor_tensor",
        "activation",
        "tensor_reduce",
    ]


def test_a_cast_is_how_a_result_is_written():
    fused = steps_of(lambda x: (x * 2).astype(BF16), (8, 16))
    (step,) = fused.steps
    instruction, scalars = priced(fused, step)
    assert instruction.results[0].type.dtype == jnp.bfloat16
    assert scalars == {1}


def test_a_widening_cast_is_read_as_it_is():
    fused = steps_of(lambda x: x.astype(F32) * 2, (8, 16), dtype=BF16)
    (step,) = fused.steps
    instruction, _ = priced(fused, step)
    assert instruction.operands[0].type.dtype == jnp.bfloat16


def test_squares_and_their_sum_are_one_activation():
    fused = steps_of(lambda x: jnp.sum(x * x, -1), (8, 16))
    (step,) = fused.steps
    assert (names(fused), step.reduces) == (["square"], True)
    assert len(step.results) == 1  # the squares themselves are not kept


@pytest.mark.parametrize("function", [jax.nn.silu, jax.nn.sigmoid])
def test_gates_are_one_activation(function):
    fused = steps_of(function, (8, 16))
    assert names(fused) in (["silu"], ["logistic"])


def test_a_vector_along_the_columns_is_a_second_tensor():
    fused = steps_of(lambda x, w: x * w, (8, 16), (16,))
    (step,) = fused.steps
    assert step.form == "tensor_tensor"
    assert priced(fused, step)[1] == frozenset()


def test_a_scalar_per_row_is_not():
    fused = steps_of(lambda x, w: x * w[:, None], (8, 16), (8,))
    (step,) = fused.steps
    assert (step.form, step.binds_rows) == ("tensor_scalar", True)
    assert priced(fused, step)[1] == {1}


def test_a_transpose_of_an_argument_is_left_to_dma():
    fused = steps_of(lambda x: x.T + 1, (8, 16))
    (step,) = fused.steps
    assert fused.access[step.operands[0]].transposes


def test_a_transpose_of_what_was_computed_is_a_step():
    fused = steps_of(lambda x: jnp.exp(x).T + 1, (8, 16))
    assert [s.form for s in fused.steps] == ["activation", "other", "tensor_scalar"]


def test_a_table_is_no_immediate():
    table = np.arange(16, dtype=np.float32)
    fused = steps_of(lambda x: x + table, (8, 16))
    (step,) = fused.steps
    assert step.form == "tensor_tensor"
    assert len(fused.constants) == 1


def test_small_callees_are_fused_with_their_callers():
    inner = jax.jit(lambda x: x + 1)
    (step,) = steps_of(lambda x: jnp.exp(inner(x)), (8, 16)).steps
    assert len(step.members) == 2


# -- passes that lowering has no instruction for ---------------------------------------


def test_a_scalar_comes_before_a_tensor_in_one_pass():
    (step,) = steps_of(lambda x, y: (x * 2) + y, (8, 16), (8, 16)).steps
    assert step.form == "tensor_tensor"


def test_a_fold_comes_with_what_it_folds():
    (step,) = steps_of(lambda x: jnp.max(jnp.abs(x), -1), (8, 16)).steps
    assert isinstance(step.instruction, ReducingPass)
    assert (step.instruction.fold, step.instruction.rows) == ("maximum", 8)
    assert step.instruction.is_affine
    (step,) = steps_of(lambda x: jnp.sum(jnp.maximum(x, 1), -1), (8, 16)).steps
    assert isinstance(step.instruction, ReducingPass)
    assert not step.instruction.is_affine


def test_a_cumulative_sum_is_a_scan_among_the_other_steps():
    fused = steps_of(lambda x: jnp.cumsum(x * 2, -1) + 1, (8, 16))
    assert [s.form for s in fused.steps].count("scan") == 1
