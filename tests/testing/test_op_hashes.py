"""Hashes of ops' results, and the first that changed; fingerprints of programs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from neuronjax.testing import ProgramsDiffer, assert_same_program
from neuronjax.testing.op_hashes import OpHashes, first_change, hash32


def ops(lines, sequence, hashes):
    return OpHashes(
        lines=tuple(lines),
        sequence=np.array(sequence, np.int32),
        hashes=np.array(hashes, np.uint32),
    )


BEFORE = ops(["a f32  # x.py:1", "loop", "b f32  # x.py:2"], [0, 2, 2, 1], [7, 8, 9, 1])


def test_hashes_see_every_bit_and_no_nan_payload():
    x = np.array([1, 2, np.nan], np.float32)
    assert hash32(x) == hash32(x.copy())
    other = x.copy()
    other.view(np.uint32)[1] ^= 1
    assert hash32(x) != hash32(other)
    payload = x.copy()
    payload.view(np.uint32)[2] |= 5
    assert hash32(x) == hash32(payload)
    narrow = x.astype(ml_dtypes.bfloat16)
    assert hash32(narrow) == hash32(narrow.copy())
    assert hash32(x, x) != hash32(x)


def test_equal_runs_have_no_change():
    assert first_change(BEFORE, BEFORE) is None


def test_an_iteration_is_named():
    now = ops(BEFORE.lines, BEFORE.sequence, [7, 8, 0, 0])
    found = first_change(BEFORE, now)
    assert found is not None
    assert (found.line, found.execution, found.position) == ("b f32  # x.py:2", 1, 2)
    assert str(found) == "b f32  # x.py:2, on run 2 of it (after 2 equal results)"


def test_another_instruction_is_named_with_what_it_was():
    now = ops(
        ["a f32  # x.py:9", "loop", "c f32  # x.py:2"], [0, 2, 2, 1], [7, 8, 9, 1]
    )
    found = first_change(BEFORE, now)
    assert found is not None
    assert (found.line, found.before) == ("c f32  # x.py:2", "b f32  # x.py:2")


def test_source_lines_alone_are_no_change():
    lines = [line.replace("x.py", "y.py") for line in BEFORE.lines]
    assert first_change(BEFORE, ops(lines, BEFORE.sequence, BEFORE.hashes)) is None


def function(x):
    def inner(x):
        return jax.scipy.special.erf(x) + 2.0

    return jax.jit(inner)(x) * jnp.arange(4.0)


def renamed(y):
    def other_name(y):
        two = 2.0
        return jax.scipy.special.erf(y) + two

    return jax.jit(other_name)(y) * jnp.arange(4.0)


def test_names_and_lines_do_not_matter():
    assert_same_program(function, renamed)(np.ones(4, np.float32))


def test_the_first_differing_op_is_shown():
    message = r"(?s)first here \(- expected\).*- .*multiply.*\+ .*sine"
    with pytest.raises(ProgramsDiffer, match=message):
        assert_same_program(lambda x: jnp.sin(x), function)(jnp.ones(4))
    with pytest.raises(ProgramsDiffer, match=r"test_op_hashes\.py:\d+"):
        assert_same_program(lambda x: x + 1, lambda x: x + 2)(jnp.ones(4))
