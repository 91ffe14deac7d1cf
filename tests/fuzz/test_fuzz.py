"""Random programs: compiled against op by op by bits, and against native JAX.

Every program is compiled as it stands, under an outer jit, or as constants of one, and
each time its bits are those of the run op by op (section 5 of the design). Under
"fp32" its values are also held against native JAX: equal bits where nothing rounds,
else within a multiple of what moving every result by a few units in its last place
does to them. `make fuzz` goes on for FUZZ_MINUTES from FUZZ_SEED.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from neuronjax.execution import interpreter
from tests.conformance import bits
from tests.fuzz.generator import programs
from tests.fuzz.program import Program, wobbler

POLICIES = ("fp32", "bf16", "fp8", "bf16_stochastic", "bf16_all")

#: How an emulated function is compiled.
COMPILED: dict[str, Callable[[Callable, list], Any]] = {
    "jit": lambda step, args: step(*args),
    "outer jit": lambda step, args: jax.jit(step)(*args),
    "constants of an outer jit": lambda step, args: jax.jit(lambda: step(*args))(),
}

#: Largest error in units of what the wobble does; of several roundings in one
#: expression, and of the wobble having missed the worst pattern.
SLACK = 16
#: Absolute floor, in units of the dtype's epsilon: values are of the order of 1.
FLOOR = 16
WOBBLES = 4

cheap = {"xla_backend_optimization_level": 0}


def emulation(program: Program, policy: str, outside: bool) -> Callable:
    """The emulated program; its transformation outside or inside of the emulation."""
    function = program.untransformed()
    if outside:
        return program.transformed(bits.emulated(function, policy))
    return bits.emulated(program.transformed(function), policy)


def check_bits(program: Program, policy: str, outside: bool, compiled: str) -> Any:
    """Compiled is op by op; returns the values."""
    step, args = emulation(program, policy, outside), program.arguments()
    expected = bits.op_by_op(step, *args)
    bits.assert_same(COMPILED[compiled](step, args), expected, compiled)
    return expected


def check_values(program: Program, actual: Any) -> None:
    """Close to native JAX, as far as the program itself allows."""
    args = program.arguments()
    native = jax.jit(
        program.transformed(program.untransformed()), compiler_options=cheap
    )(*args)

    def wobbled(seed: jax.Array) -> Any:
        return program.transformed(program.untransformed(wobbler(seed)))(*args)

    moved = jax.jit(jax.vmap(wobbled), compiler_options=cheap)(
        jnp.arange(WOBBLES, dtype=jnp.uint32)
    )
    exact = [v.exact for v in program.results]
    if "grad" in program.transformation:
        exact = [False] * len(jax.tree.leaves(actual))
    trees = (jax.tree.leaves(tree) for tree in (actual, native, moved))
    for number, (leaf, want, runs, is_exact) in enumerate(
        zip(*trees, exact, strict=True)
    ):
        what = f"output {number} against native JAX"
        if is_exact:
            bits.assert_same(leaf, want, what)
        else:
            assert_close(leaf, want, runs, what)


def assert_close(actual: Any, native: Any, runs: Any, what: str) -> None:
    """|actual - native| <= SLACK x the largest move of any element, plus the floor."""
    eps = float(jnp.finfo(native.dtype).eps)
    actual, native, runs = (
        np.asarray(a).astype(np.float64) for a in (actual, native, runs)
    )
    spread = np.abs(runs - native).max(initial=0.0)
    bound = SLACK * spread + FLOOR * eps
    error = np.max(np.abs(actual - native), initial=0.0)
    # NaN is not below any bound; one that native JAX has as well is no error.
    error = 0.0 if np.array_equal(actual, native, equal_nan=True) else error
    assert error <= bound, f"{what}: error {error:.3g}, bound {bound:.3g}"


def fuzz(policy: str, seed: int, examples: int, lines: tuple[int, int]) -> None:
    """Checks random programs of so many lines under a policy; the seed says which."""

    @hypothesis.seed(zlib.crc32(policy.encode()) + seed)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(
        programs(*lines), st.booleans(), st.sampled_from(sorted(COMPILED))
    )
    def check(program: Program, outside: bool, compiled: str) -> None:
        values = check_bits(program, policy, outside, compiled)
        if policy == "fp32":
            check_values(program, values)

    check()


@hypothesis.settings(max_examples=5, derandomize=True, database=None, deadline=None)
@hypothesis.given(programs(20, 40))
def test_programs_are_valid_jax(program):
    """As long as those of `make fuzz`, and only traced."""
    step = program.transformed(program.untransformed())
    jax.eval_shape(step, *program.arguments())
    source = repr(program)
    assert source.count("\n") > 20
    compile(source, "printed", "exec")


def test_values_out_of_bounds_are_found():
    native, runs = jnp.ones(3), jnp.ones((4, 3)) + 1e-6
    assert_close(native + 1e-5, native, runs, "near")
    for wrong in (native + 1e-4, native.at[1].set(jnp.nan), native.at[2].set(jnp.inf)):
        with pytest.raises(AssertionError, match="bound"):
            assert_close(wrong, native, runs, "far")


@pytest.mark.parametrize("policy", POLICIES)
def test_random_programs(policy):
    """The same few on every run; the first that Hypothesis makes are trivial."""
    fuzz(policy, seed=0, examples=3, lines=(3, 9))


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("policy", POLICIES)
def test_random_programs_for_minutes(policy):
    minutes = float(os.environ.get("FUZZ_MINUTES", "10"))
    seed = int(os.environ.get("FUZZ_SEED", "1"))
    end = time.monotonic() + 60 * minutes / len(POLICIES)
    while time.monotonic() < end:
        print(f"FUZZ_SEED={seed}")
        fuzz(policy, seed, examples=6, lines=(5, 40))
        seed += 1
        # A process may map only so many compiled programs.
        interpreter.forget_kernels()
        jax.clear_caches()
