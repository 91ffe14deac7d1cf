"""Random programs: every way of running them against op by op, and native JAX.

Every program is run one of `WAYS`, and its bits are those of the run op by op (section
5 of the design). Under "fp32" its values are also held against native JAX: equal bits
where nothing rounds, else within a multiple of what moving every result by a few units
in its last place does to them. `make fuzz` goes on for FUZZ_MINUTES from FUZZ_SEED; a
program that fails is written to FUZZ_FAILURES (.cache/fuzz), smaller and smaller.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import time
import zlib

import hypothesis
import jax
import jax.numpy as jnp
import pytest
from hypothesis import strategies as st

import neuronjax as nj
from neuronjax.execution import interpreter
from tests.fuzz import failures
from tests.fuzz.checks import assert_close, check_bits, check_values
from tests.fuzz.generator import programs
from tests.fuzz.program import Block, Line, Program, Value
from tests.fuzz.ways import POLICIES, WAYS

#: Counted where a program's source holds them.
WORDS = (
    *("lax.scan", "lax.while_loop", "lax.fori_loop", "lax.cond", "lax.switch"),
    *("jax.grad", "jax.checkpoint", "jax.vmap", "halved", "jax.shard_map"),
    *("float8", "float4", "int8", "int16", "int64", "np.array"),
)
#: What was run, by this process: programs, lines, ways, targets, ...
TALLY: collections.Counter[str] = collections.Counter()


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
    @hypothesis.given(programs(*lines), st.booleans(), st.sampled_from(sorted(WAYS)))
    def check(program: Program, outside: bool, way: str) -> None:
        try:
            values = check_bits(program, policy, outside, way)
            if policy == "fp32" and program.has_native_twin:
                check_values(program, values)
        except Exception as error:
            path = failures.write(program, policy, outside, way, seed, error)
            error.add_note(f"the program is in {path}")
            raise
        _count(program, way)

    check()


def _count(program: Program, way: str) -> None:
    source = program.source()
    about = ["programs", way, program.target, program.transformation]
    about += ["wild"] * program.wild + ["64-bit types"] * program.x64
    about += [word for word in WORDS if word in source]
    TALLY.update(about)
    TALLY["lines"] += source.count(" = ")


@pytest.mark.slow
@hypothesis.settings(max_examples=5, derandomize=True, database=None, deadline=None)
@hypothesis.given(programs(20, 40))
def test_programs_are_valid_jax(program):
    """As long as those of `make fuzz`, and only traced."""
    with jax.enable_x64(program.x64):
        step = program.transformed(program.untransformed())
        jax.eval_shape(step, *program.arguments())
    text = failures.script(program, "fp32", True, "jit", ValueError("it"))
    assert text.count("\n") > 60
    compile(text, "printed", "exec")


def test_values_out_of_bounds_are_found():
    native, runs = jnp.ones(3), jnp.ones((4, 3)) + 1e-6
    assert_close(native + 1e-5, native, runs, "near")
    for wrong in (native + 1e-4, native.at[1].set(jnp.nan), native.at[2].set(jnp.inf)):
        with pytest.raises(AssertionError, match="bound"):
            assert_close(wrong, native, runs, "far")


@pytest.mark.slow
def test_own_derivatives_in_branches_are_held_against_native():
    """JAX refuses them where they close over a tracer, a seed or a constant."""
    floats = {"dtype": "float32", "shape": (3,)}
    x = Value(name="x", exact=True, **floats)
    out, z = (Value(name=n, exact=False, **floats) for n in ("out", "z"))
    line = Line(targets=(z,), expression="jnp.sin(y) * k")
    inner = Block(name="inner", parameters=("y",), lines=(line,), results=("z",))
    branch = "lax.cond(x[0] < 9, lambda x: halved(inner)(x), lambda x: (x,), x)"
    step = Line(targets=(out,), expression=branch, blocks=(inner,))
    program = Program(
        inputs=(x,),
        constants=(Value(name="k", exact=True, **floats),),
        block=Block(name="program", parameters=("x",), lines=(step,), results=("out",)),
        results=(out,),
        transformation="grad of remat",
        seed=0,
    )
    values = check_bits(program, "fp32", True, "jit")
    check_values(program, values)
    with pytest.raises(AssertionError, match="bound"):
        check_values(program, jax.tree.map(lambda v: v + 1e-3, values))


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_random_programs(policy):
    """The same few on every run; the first that Hypothesis makes are trivial."""
    fuzz(policy, seed=0, examples=3, lines=(3, 9))


#: Operations of the longest programs.
LONG = 5_000


def check_long(policy: str, seed: int) -> None:
    """A program of so many operations: a short one, over and over."""
    drawn: list[Program] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=8,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(programs(20, 40))
    def draw(program: Program) -> None:
        if not program.x64:
            drawn.append(dataclasses.replace(program, transformation="value"))

    draw()
    once = drawn[-1]  # the first are trivial
    long = dataclasses.replace(once, repeats=LONG // operations(once) + 1)
    try:
        check_bits(long, policy, False, "jit")
    except Exception as error:
        path = failures.write(long, policy, False, "jit", seed, error)
        error.add_note(f"the program is in {path}")
        raise
    TALLY["programs of 5,000 operations"] += 1


def operations(program: Program) -> int:
    """StableHLO operations of the captured program."""
    step = nj.jit(program.function(), target=program.target)
    return sum(1 for _ in step.lower(*program.arguments()).program.walk())


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("policy", POLICIES)
def test_random_programs_for_minutes(policy):
    minutes = float(os.environ.get("FUZZ_MINUTES", "10"))
    seed = int(os.environ.get("FUZZ_SEED", "1"))
    start = time.monotonic()
    failed: list[str] = []
    check_long(policy, seed)
    while (spent := time.monotonic() - start) < 60 * minutes / len(POLICIES):
        print(f"FUZZ_SEED={seed} {policy}: {spent:.0f} s, {dict(TALLY)}", flush=True)
        try:
            fuzz(policy, seed, examples=6, lines=(3, 24))
        except Exception as error:  # the others are run all the same
            failed.append(f"seed {seed}: {error} {error.__notes__}")
            print(failed[-1], flush=True)
        seed += 1
        # A process may map only so many compiled programs.
        interpreter.forget_kernels()
        jax.clear_caches()
    print(f"{policy}: {time.monotonic() - start:.0f} s, {dict(TALLY)}", flush=True)
    assert not failed, "\n".join(failed)
