"""The zoo itself, on the host: its programs run, lower, and are what they claim.

Whether the emulator runs them bit for bit is tested elsewhere; here a failure means
that a program is broken before the emulator sees it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir.dialects import stablehlo

from examples import gpt as model
from tests.zoo import PROGRAMS, Program
from tests.zoo.operations import lower, operations
from tests.zoo.program import PyTree

# What it says changes with the zoo and with JAX, not with the emulator.
pytestmark = pytest.mark.slow

# Most of the time goes to LLVM; programs this small gain nothing from it.
_FAST = {"xla_backend_optimization_level": 0}
_jit = functools.partial(jax.jit, compiler_options=_FAST)

_every_program = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)


@pytest.fixture(autouse=True)
def _promotion_as_users_have_it() -> Iterator[None]:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@functools.cache
def _trace(name: str) -> Any:
    fn, args = PROGRAMS[name].make(0)
    return _jit(fn).trace(*args)


@functools.cache
def _run(name: str) -> PyTree:
    return _trace(name).lower().compile()(*PROGRAMS[name].make(0)[1])


def _all_finite(tree: PyTree) -> bool:
    floats = (x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating))
    return all(np.isfinite(np.asarray(x, np.float64)).all() for x in floats)


def _assert_close(actual: PyTree, expected: PyTree, atol: float = 1e-5) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=atol),
        actual,
        expected,
    )


# ---- Every program.


@_every_program
def test_runs_with_finite_outputs(program: Program) -> None:
    out = _run(program.name)
    assert jax.tree.leaves(out)
    assert _all_finite(out)


@_every_program
def test_lowers_for_neuron_without_host_calls(program: Program) -> None:
    module = lower(_trace(program.name))
    names = {operation.name for operation in operations(module)}
    assert "stablehlo.custom_call" not in names


@_every_program
def test_small_size_traces_to_larger_shapes(program: Program) -> None:
    def elements(args: tuple) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(args))

    fn, small = program.make(0, "small")
    jax.eval_shape(fn, *small)
    assert elements(small) > 2 * elements(program.make(0, "tiny")[1])


@_every_program
def test_arguments_depend_on_the_seed_alone(program: Program) -> None:
    first, again, other = (program.make(seed)[1] for seed in (0, 0, 1))
    as_numpy = [
        [np.asarray(_data(leaf), order="C").tobytes() for leaf in jax.tree.leaves(args)]
        for args in (first, again, other)
    ]
    assert as_numpy[0] == as_numpy[1] != as_numpy[2]


def _data(leaf: jax.Array) -> jax.Array:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


# ---- What some of them claim.


@pytest.mark.parametrize(
    "program", [p for p in PROGRAMS.values() if p.batch_argnums], ids=lambda p: p.name
)
def test_per_example_programs_treat_examples_apart(program: Program) -> None:
    fn, args = program.make(0)
    fn = _jit(fn)
    alone = tuple(
        arg[:1] if i in program.batch_argnums else arg for i, arg in enumerate(args)
    )
    _assert_close(fn(*alone), jax.tree.map(lambda x: x[:1], fn(*args)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("gpt_adam", "gpt_remat"),
        ("mamba_scan_adam", "mamba_associative_adam"),
        ("moe_masked_adafactor", "moe_indexed_adafactor"),
    ],
)
def test_programs_that_compute_the_same_agree(one: str, other: str) -> None:
    _assert_close(_run(one), _run(other))


def test_some_contractions_exceed_a_tile_and_no_multiple_of_16() -> None:
    found = set()
    for name in ("mlp_sgd", "gpt_adam"):
        for operation in operations(lower(_trace(name))):
            if operation.name == "stablehlo.dot_general":
                found.add(_contracted(operation))
    assert {203, 133} <= found


def _contracted(operation: Any) -> int:
    """K of a dot_general: the number of products that an output element sums."""
    numbers = stablehlo.DotDimensionNumbers(
        operation.attributes["dot_dimension_numbers"]
    )
    shape = operation.operands[0].type.shape
    return int(np.prod([shape[d] for d in numbers.lhs_contracting_dimensions]))


# ---- The GPT of the quickstart.


def test_gpt_is_causal() -> None:
    fn, (params, tokens) = PROGRAMS["gpt_forward"].make(0)
    changed = tokens.at[:, -1].set((tokens[:, -1] + 1) % 133)
    fn = _jit(fn)
    before, after = fn(params, tokens), fn(params, changed)
    np.testing.assert_array_equal(before[:, :-1], after[:, :-1])
    assert (before[:, -1] != after[:, -1]).any()


def test_gpt_stacked_layers_compute_what_listed_ones_do() -> None:
    listed, args = PROGRAMS["gpt_forward"].make(0)
    params, tokens = args
    stacked, (shapes, _) = PROGRAMS["gpt_scan_forward"].make(0)
    layers = [params["blocks"]["layers"][i] for i in range(2)]
    shapes["blocks"]["layers"] = jax.tree.map(lambda *x: jnp.stack(x), *layers)
    shapes["embed"], shapes["norm"] = params["embed"], params["norm"]
    _assert_close(_jit(stacked)(shapes, tokens), _jit(listed)(params, tokens))


def test_gpt_starts_at_the_entropy_of_its_vocabulary() -> None:
    config = model.GPTConfig(vocab_size=64, layers=1, heads=2, width=16, hidden=32)
    graphdef, params = model.create(config)
    tokens = jnp.arange(32, dtype=jnp.int32).reshape(2, 16)
    value = _jit(functools.partial(model.loss, graphdef))(params, tokens)
    assert abs(value - np.log(64)) < 1.0


def test_gpt_config_rejects_odd_head_widths() -> None:
    with pytest.raises(ValueError, match="width 20 must be a multiple of 2"):
        model.GPTConfig(width=20, heads=4)
