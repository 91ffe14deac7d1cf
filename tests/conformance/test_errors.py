"""Bad input: the category of error, the op or argument, the user's line, the remedy.

The line is that of this file, for here the programs are written (section 9 of the
design).
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.extend.mlir import ir
from jax.interpreters import mlir

import neuronjax as nj
from neuronjax.capture.decode import decode_module
from neuronjax.lowering.registry import RULES

X = np.ones((4, 4), np.float32)
HERE = Path(__file__).name


def line_of(function) -> str:
    """The line that follows `def` or that holds the lambda."""
    lines, start = inspect.getsourcelines(function)
    return f"{HERE}:{start + (len(lines) > 1)}"


def check(error: nj.NeuronJaxError, *, names: str, line: str | None = None) -> None:
    """Names what is wrong, the line, and what to do."""
    text = str(error)
    assert re.search(names, text), text
    assert error.remedy
    assert f"remedy: {error.remedy}" in text
    if line is not None:
        assert error.location, text
        assert error.location.endswith(line), f"{error.location} is not {line}"
        assert f"at: {error.location}" in text


# ---- Programs that the emulator does not run.


def svd(x):
    return jnp.linalg.svd(x)[1]


def e4m3fn(x):
    return x.astype(jnp.float8_e4m3fn).astype(jnp.float32)


def uniform(x):
    return x + jax.lax.rng_uniform(0.0, 1.0, x.shape)


def pure_callback(x):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((4, 4), jnp.float32), x)


def effectful_callback(x):
    return io_callback(np.sin, jax.ShapeDtypeStruct((4, 4), jnp.float32), x)


def ordered_callback(x):
    return io_callback(np.sin, jax.ShapeDtypeStruct(X.shape, X.dtype), x, ordered=True)


PROGRAMS = [
    (svd, nj.UnsupportedError, "svd|eigh|qr"),
    (e4m3fn, nj.UnsupportedError, "float8_e4m3fn .* trn1"),
    (uniform, nj.UnsupportedError, "stablehlo.rng"),
    (pure_callback, nj.UnsupportedError, "pure_callback"),
    (effectful_callback, nj.UnsupportedError, "io_callback"),
    (ordered_callback, nj.UnsupportedError, "io_callback"),
]


@pytest.mark.parametrize(
    ("function", "category", "names"),
    PROGRAMS,
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_programs_that_are_refused(function, category, names):
    for call in (
        nj.jit(function, target="trn1"),
        nj.jit(function, target="trn1").lower,
        jax.jit(nj.jit(function, target="trn1")),
    ):
        with pytest.raises(category) as caught:
            call(X)
        check(caught.value, names=names, line=line_of(function))


def test_the_line_is_found_in_loops_and_callees():
    inner = jax.jit(e4m3fn)

    def program(x):
        return jax.lax.scan(lambda c, _: (inner(c), None), x, None, length=2)[0]

    with pytest.raises(nj.UnsupportedError) as caught:
        nj.jit(program, target="trn1")(X)
    check(caught.value, names="float8_e4m3fn", line=line_of(e4m3fn))


def test_an_op_without_a_rule(monkeypatch):
    monkeypatch.delitem(RULES, "stablehlo.sine")

    def wave(x):
        return jnp.sin(x)

    with pytest.raises(nj.UnimplementedError) as caught:
        nj.jit(wave)(X)
    check(caught.value, names="sine", line=line_of(wave))
    assert caught.value.op


def test_a_rule_that_fails(monkeypatch):
    def broken(op, context):
        yield op.attributes["no such attribute"]

    monkeypatch.setitem(RULES, "stablehlo.sine", broken)

    def wave(x):
        return jnp.sin(x)

    with pytest.raises(nj.InternalError) as caught:
        nj.jit(wave)(X)
    check(caught.value, names="KeyError: 'no such attribute'", line=line_of(wave))


def test_complex_numbers_before_their_sdk():
    def rotated(x):
        return jax.lax.complex(x, x).imag

    policy = dataclasses.replace(nj.Policy.preset("fp32"), sdk="2.31")
    with pytest.raises(nj.UnsupportedError) as caught:
        nj.jit(rotated, policy=policy)(X)
    check(caught.value, names=r"(?s)complex64.*2\.32", line=line_of(rotated))


# ---- Arguments.


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_arguments_of_dtypes_that_no_core_has(dtype):
    def program(weights):
        return weights["w"]

    with jax.enable_x64(True):
        argument = {"w": jnp.ones(3, dtype)}
        for call in (nj.jit(program), nj.jit(program).lower):
            with pytest.raises(nj.UnsupportedError) as caught:
                call(argument)
            check(caught.value, names=f"argument weights/w has dtype {dtype}")


def test_float64_inside_a_program():
    def wide(x):
        return x.astype(jnp.float64) * 2

    with jax.enable_x64(True):
        with pytest.raises(nj.UnsupportedError) as caught:
            nj.jit(wide)(X)
    check(caught.value, names="float64", line=line_of(wide))


@pytest.mark.parametrize("argument", ["text", object()], ids=["string", "object"])
def test_arguments_that_are_no_arrays(argument):
    def program(x, mode):
        return x

    for call in (nj.jit(program), nj.jit(program).lower):
        with pytest.raises(nj.InvalidProgramError) as caught:
            call(X, argument)
        check(caught.value, names="argument mode")
        assert "static_argnames" in str(caught.value)


def test_dynamic_shapes():
    text = """
    func.func public @main(%x: tensor<?xf32>) -> tensor<?xf32> {
      %0 = stablehlo.add %x, %x : tensor<?xf32>
      return %0 : tensor<?xf32>
    }
    """
    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        with pytest.raises(nj.UnsupportedError) as caught:
            decode_module(ir.Module.parse(text))
    check(caught.value, names=r"tensor<\?xf32>")


# ---- Targets and policies.


def double(x):
    return x * 2


@pytest.mark.parametrize("target", ["trn9", "h100", "", "trn2.49xlarge"])
def test_unknown_targets(target):
    with pytest.raises(nj.InvalidProgramError) as caught:
        nj.jit(double, target=target)
    check(caught.value, names=re.escape(repr(target)))
    assert "trn2" in str(caught.value)


@pytest.mark.parametrize("policy", ["fp7", "BF16", 3])
def test_unknown_policies(policy):
    with pytest.raises(nj.InvalidProgramError) as caught:
        nj.jit(double, policy=policy)
    check(caught.value, names=repr(policy))
    assert "bf16" in str(caught.value)


def test_a_rule_that_matches_nothing():
    policy = nj.Policy(rules=(nj.Rule(param="head/kernel", auto_cast="all"),))
    with pytest.raises(nj.InvalidProgramError) as caught:
        nj.jit(lambda params: params["head"]["bias"] * 2, policy=policy)(
            {"head": {"bias": X}}
        )
    check(caught.value, names="head/kernel.*matches no op")
    assert "head/bias" in str(caught.value)


# ---- Calls.


def square(x):
    return (x * x).sum()


FORWARD_MODE = {
    "jvp": lambda f: jax.jvp(f, (X,), (X,)),
    "jacfwd": lambda f: jax.jacfwd(f)(X),
    "hessian": lambda f: jax.hessian(f)(X),
    "jvp of vmap": lambda f: jax.jvp(jax.vmap(f), (X,), (X,)),
    "linearize": lambda f: jax.linearize(f, X)[1](X),
    "jvp of grad": lambda f: jax.jvp(jax.grad(f), (X,), (X,)),
    "jvp in jit": jax.jit(lambda f: jax.jvp(f, (X,), (X,)), static_argnums=0),
    "jvp in scan": lambda f: scanned(lambda x: jax.jvp(f, (x,), (x,))[1], X),
    "jvp of scan": lambda f: jax.jvp(lambda x: scanned(f, x), (X,), (X,)),
    "of cotangents": lambda f: jax.linearize(jax.vjp(f, X)[1], jnp.ones(()))[1](1.0),
}


def scanned(f, x):
    return jax.lax.scan(lambda total, _: (total + f(x), None), 0.0, length=2)[0]


@pytest.mark.slow_cases("jacfwd", "of cotangents", "linearize", "hessian")
@pytest.mark.parametrize("name", FORWARD_MODE)
def test_forward_mode(name):
    with pytest.raises(nj.UnsupportedError) as caught:
        FORWARD_MODE[name](nj.jit(square))
    check(caught.value, names="forward-mode .* of square")
    assert "jacrev(jacrev(f))" in str(caught.value.remedy)
    assert str(caught.value.location).startswith(__file__)


@pytest.mark.slow
def test_forward_mode_is_emulated_with_the_function():
    """As the remedy says, whether the function is emulated by itself or not."""
    policy = nj.Policy.preset("bf16")
    for f in (square, nj.jit(square)):
        emulated = nj.jit(lambda x, t, f=f: jax.jvp(f, (x,), (t,)), policy=policy)
        np.testing.assert_allclose(
            emulated(X, X), jax.jvp(square, (X,), (X,)), rtol=1e-6
        )


STOCHASTIC = nj.Policy(auto_cast="matmult", rounding="stochastic")


@pytest.mark.parametrize(
    "transform",
    [jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())],
    ids=["jit", "vmap", "grad"],
)
def test_stochastic_rounding_traced_without_a_seed(transform):
    with pytest.raises(nj.InvalidProgramError) as caught:
        transform(nj.jit(double, policy=STOCHASTIC))(X)
    check(caught.value, names="double rounds stochastically and is traced")
    assert "with_rounding_seed" in str(caught.value.remedy)


def test_stochastic_rounding_in_a_policy_scope_without_a_seed():
    def narrow(x):
        with nj.policy_scope(STOCHASTIC):
            return x @ x

    with pytest.raises(nj.InvalidProgramError) as caught:
        jax.jit(nj.jit(narrow))(X)
    check(caught.value, names="stochastic")
    assert "with_rounding_seed" in str(caught.value.remedy)
