"""Models of Flax's kind: one train step emulated, against native JAX.

In FP32 every parameter, statistic, cache, token and loss lies within `BOUND` of native
JAX's; integers are equal. In BF16 the result is finite and near. Compiled against op by
op is the subject of tests/conformance/test_matrix.py and of tests/fuzz.
"""

from __future__ import annotations

import functools
import re

import jax
import numpy as np
import pytest

import neuronjax as nj
from tests.conformance import bits
from tests.real.models import STEPS

#: Largest relative error of a leaf, in the 2-norm: a few hundred times 2^-24, for sums
#: of up to some hundred terms in another order, through a dozen layers and back.
BOUND = 3e-5
#: Biases of the keys of an attention: a softmax does not see them, so that their
#: gradient is zero but for rounding.
INVISIBLE = re.compile(r"\bkey'\]\['bias'\]")
#: The same for matmul operands rounded to 8 bits.
BF16_BOUND = 0.05

#: What `make test` runs; the others compile more of the same.
QUICK = {"causal_decode", "ppo"}

cheap = {"xla_backend_optimization_level": 0}
NAMES = [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in STEPS]


@functools.cache
def built(name):
    """(step, arguments)."""
    return STEPS[name]()


@functools.cache
def native(name):
    """What the host returns."""
    step, args = built(name)
    return jax.jit(step, compiler_options=cheap)(*args)


def emulated(name, policy):
    """What the emulated chip returns."""
    step, args = built(name)
    return nj.jit(step, target="trn2", policy=policy, compiler_options=cheap)(*args)


def integers(tree):
    """The leaves that have no relative error."""
    leaves = bits.leaves(tree).items()
    return {path: leaf for path, leaf in leaves if leaf.dtype.kind in "iub"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_fp32_is_close_to_native(name):
    actual, expected = emulated(name, "fp32"), native(name)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    assert bits.shapes(actual) == bits.shapes(expected)
    errors = bits.relative_errors(actual, expected)
    far = {path: error for path, error in errors.items() if not error < BOUND}
    assert [path for path in far if not INVISIBLE.search(path)] == []
    bits.assert_same(integers(actual), integers(expected))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "ppo",
        *[
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("digits_cnn", "transformer", "seq2seq")
        ],
    ],
)
def test_bf16_is_finite_and_near(name):
    actual = emulated(name, "bf16")
    for path, leaf in bits.leaves(actual).items():
        assert np.isfinite(leaf.astype(np.float64)).all(), path
    parameters, _, loss, _ = actual
    wanted, _, native_loss, _ = native(name)
    errors = bits.relative_errors((parameters, loss), (wanted, native_loss))
    assert max(errors.values()) < BF16_BOUND
    assert max(errors.values()) > 0
