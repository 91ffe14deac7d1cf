"""What is asked of a random program: equal bits, and values like native JAX's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.conformance import bits
from tests.fuzz.program import Program, wobbler
from tests.fuzz.ways import WAYS, applies, emulation

#: Largest error in units of what the wobble does; of several roundings in one
#: expression, and of the wobble having missed the worst pattern.
SLACK = 16
#: Absolute floor, in units of the dtype's epsilon: values are of the order of 1.
FLOOR = 16
WOBBLES = 4

cheap = {"xla_backend_optimization_level": 0}


def check_bits(program: Program, policy: str, outside: bool, way: str) -> Any:
    """Run that way it is op by op; returns the values."""
    with jax.enable_x64(program.x64):
        step, args = emulation(program, policy, outside), program.arguments()
        expected = bits.op_by_op(step, *args)
        if not applies(way, policy):
            way = "jit"
        bits.assert_same(WAYS[way](step, args), expected, way)
    return expected


def check_values(program: Program, actual: Any) -> None:
    """Close to native JAX, as far as the program itself allows."""
    with jax.enable_x64(program.x64):
        _check_values(program, actual)


def _check_values(program: Program, actual: Any) -> None:
    args = program.arguments()
    native = jax.jit(
        program.transformed(program.untransformed()), compiler_options=cheap
    )(*args)

    def wobbled(seed: jax.Array | np.uint32) -> Callable[..., Any]:
        return program.transformed(program.untransformed(wobbler(seed)))

    seeds = np.arange(WOBBLES, dtype=np.uint32)
    if "halved(" in program.source():
        # In loops and branches JAX refuses derivatives of one's own that close over a
        # tracer: neither the seed nor a constant of the program may be one.
        alone = [jax.jit(wobbled(s), compiler_options=cheap)(*args) for s in seeds]
        moved = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
    else:
        each = jax.vmap(lambda seed, args: wobbled(seed)(*args), in_axes=(0, None))
        moved = jax.jit(each, compiler_options=cheap)(seeds, args)
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
    # What is not finite in all runs alike is so here too; where they part, no bound is.
    alike = (np.isfinite(runs) == np.isfinite(native)).all(axis=0)
    finite = np.isfinite(native) & alike
    infinite = ~np.isfinite(native) & alike
    np.testing.assert_array_equal(actual[infinite], native[infinite], what)
    spread = np.abs(runs - native)[:, finite].max(initial=0.0)
    bound = SLACK * spread + FLOOR * eps
    error = np.abs(actual - native)[finite].max(initial=0.0)
    # NaN is not below any bound.
    assert error <= bound, f"{what}: error {error:.3g}, bound {bound:.3g}"
