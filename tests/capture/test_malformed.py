"""Files that are not what they should be: an error with a name, never a crash.

A seeded generator flips bits, cuts, inserts, splices and rewrites versions. Every
mutation is loaded; it ends in a NeuronJaxError or in a program that MLIR verifies, and
within two seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context

import neuronjax as nj
from tests.capture import saved
from tests.files.mutations import mutated

SECONDS = 2.0


def small(params: dict, x: jax.Array) -> tuple:
    """Ops with attributes, regions, constants and a call."""
    hidden = jax.nn.relu(x @ params["w"] + jnp.arange(3.0))
    loop = jax.lax.fori_loop(0, 3, lambda i, c: c * 0.5 + hidden[0], hidden[1])
    return jnp.sort(loop), hidden.max(axis=1), jnp.argmax(x)


ARGS = ({"w": jnp.ones((4, 3))}, jnp.ones((2, 4)))


_ROWS = jax.ShapeDtypeStruct(
    jax.export.symbolic_shape("n, 4", constraints=["n >= 2"]), jnp.float32
)

FORMATS: dict[str, Callable[[], bytes]] = {
    **{
        form: lambda form=form: saved.FORMATS[form](saved.lowered(small, *ARGS))
        for form in (
            "mlir",
            "mlir in generic form",
            "mlirbc",
            "portable artifact",
            "hlo text",
            "hlo proto",
        )
    },
    "jax.export artifact": lambda: saved.exported(small, *ARGS),
    "symbolic jax.export artifact": lambda: saved.exported(small, ARGS[0], _ROWS),
}


# ---- What becomes of them.


def verdict(data: bytes) -> str:
    """What loading a file ends in; asserts what is promised of it."""
    for _ in range(5):  # a busy machine may be slow a few times
        found, seconds = timed_verdict(data)
        if seconds < SECONDS:
            return found
    raise AssertionError(f"it takes more than {SECONDS} s")


def timed_verdict(data: bytes) -> tuple[str, float]:
    start = time.monotonic()
    try:
        lowered = nj.load(data)
        if isinstance(lowered, nj.Emulated):  # of symbolic sizes
            lowered = lowered.lower(*ARGS)
    except nj.NeuronJaxError as error:
        if isinstance(error, nj.InternalError):
            raise
        return type(error).__name__, time.monotonic() - start
    seconds = time.monotonic() - start
    with make_ir_context():
        assert ir.Module.parse(lowered.as_text()).operation.verify()
    assert lowered.as_text("instructions")
    return "program", seconds


def check(form: str, count: int) -> None:
    data = FORMATS[form]()
    assert verdict(data) == "program"
    found = [verdict(new) for new in mutated(data, count, form)]
    assert len(found) == count
    assert found.count("program") < count


@pytest.mark.slow_cases("mlirbc", "portable artifact")
@pytest.mark.parametrize("form", FORMATS)
def test_twenty_mutated_files_are_refused_or_read(form):
    check(form, 20)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_two_hundred_mutated_files_are_refused_or_read(form):
    check(form, 200)


def test_spliced_files_are_refused_or_read():
    """Every format's beginning before every other format's end."""
    files = [make() for make in FORMATS.values()]
    for first in files:
        for second in files:
            if first is not second:
                verdict(first[: len(first) // 2] + second[len(second) // 2 :])
