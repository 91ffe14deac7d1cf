"""Linear algebra that no NeuronCore has: an error, or left to the host."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest
from jax.extend.core import primitives
from jax.interpreters import mlir

import neuronjax as nj
from neuronjax.capture import host_calls
from neuronjax.capture.trace import capture
from neuronjax.hardware import resolve_target
from neuronjax.ir import host_functions
from neuronjax.lowering import lower
from tests.conformance.bits import assert_same, relative_errors, same_both_ways

BY_HOST = nj.Policy(host_custom_calls=True)
BOUND = 2e-6


def matrix(n: int = 3) -> jax.Array:
    x = np.random.default_rng(0).standard_normal((n, n))
    return jnp.asarray(x + x.T + n * np.eye(n), jnp.float32)


def singular_values(x):
    return jnp.linalg.svd(x, compute_uv=False) * 2


def orthogonal_factor(x):
    return jnp.linalg.qr(x)


def eigenvalues(x):
    return jnp.linalg.eig(x)[0]


# ---- Refused.


@pytest.mark.parametrize(
    ("function", "name"),
    [(singular_values, "svd"), (orthogonal_factor, "qr"), (eigenvalues, "eig")],
)
def test_refused_by_default(function, name):
    """With the op, the user's line and the remedy."""
    with pytest.raises(nj.UnsupportedError, match=f"no NeuronCore has {name}\n") as e:
        nj.jit(function)(matrix())
    first = function.__code__.co_firstlineno
    assert e.value.location == f"{__file__}:{first + 1}"
    assert "host_custom_calls=True" in str(e.value)
    assert not any(nj.Policy.preset(p).host_custom_calls for p in ("fp32", "bf16"))


def test_a_rule_allows_one_line():
    rule = nj.Rule(scope="svd", host_custom_calls=True)
    nj.jit(singular_values, policy=nj.Policy(rules=(rule,)))(matrix())
    both = lambda x: (singular_values(x), orthogonal_factor(x))  # noqa: E731
    with pytest.raises(nj.UnsupportedError, match="has qr"):
        nj.jit(both, policy=nj.Policy(rules=(rule,)))(matrix())


def test_a_program_of_another_process(monkeypatch):
    """Its text names a function that this one does not know."""
    function = lambda x: jnp.linalg.eigvalsh(x)  # noqa: E731
    captured = capture(function, (jax.ShapeDtypeStruct((3, 3), jnp.float32),), ("x",))
    monkeypatch.setattr(host_functions, "_FUNCTIONS", {})
    with pytest.raises(
        nj.UnsupportedError, match=r"eigh\[[\s\S]*capture the program again"
    ):
        lower(captured.program, target=resolve_target("trn2"), policy=BY_HOST)


def test_the_policy_is_checked():
    with pytest.raises(nj.InvalidProgramError, match="host_custom_calls"):
        nj.Policy(host_custom_calls="yes")  # type: ignore[arg-type]


# ---- Left to the host.


PROGRAMS = {
    "singular values": singular_values,
    "eigenvalues of any matrix": eigenvalues,
    "in a loop": lambda x: jax.lax.fori_loop(0, 2, lambda _, y: jnp.linalg.qr(y)[1], x),
}
MORE_PROGRAMS = {
    "svd": jnp.linalg.svd,
    "eigh": jnp.linalg.eigh,
    "complex eigh": lambda x: jnp.linalg.eigh(x + 1j * (jnp.triu(x) - jnp.triu(x).T)),
    "pinv": jnp.linalg.pinv,
    "lstsq": lambda x: jnp.linalg.lstsq(x, x[0])[0],
    "cond": jnp.linalg.cond,
    "schur": jsp.linalg.schur,
    "hessenberg": lambda x: jsp.linalg.hessenberg(x, calc_q=True),
    "sqrtm": jsp.linalg.sqrtm,
    "polar": jsp.linalg.polar,
    "pivoted qr": lambda x: jsp.linalg.qr(x, pivoting=True),
    "raw qr": lambda x: jnp.linalg.qr(x, mode="raw"),
    "tridiagonal": lambda x: jax.lax.linalg.tridiagonal(x)[:3],
    "gradient of eigh": jax.grad(lambda x: jnp.linalg.eigh(x)[1][0, 0]),
    "gradient of qr": jax.grad(lambda x: jnp.linalg.qr(x)[1][0, 1]),
    "gradient of svd": jax.grad(lambda x: jnp.linalg.svd(x)[0][0, 0]),
    "batch": jax.vmap(lambda x: jnp.linalg.svd(jnp.outer(x, x))[1]),
}


def _parts(x):
    return (x.real, x.imag) if jnp.iscomplexobj(x) else (x,)


def as_native(function) -> None:
    got = same_both_ways(nj.jit(function, policy=BY_HOST), matrix())
    want = jax.jit(function)(matrix())
    got, want = (jax.tree.map(_parts, tuple(jax.tree.leaves(x))) for x in (got, want))
    for path, difference in relative_errors(got, want).items():
        assert difference < BOUND, path


@pytest.mark.slow_except("singular values")
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_the_host(name):
    as_native(PROGRAMS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_PROGRAMS)
def test_more_on_the_host(name):
    as_native(MORE_PROGRAMS[name])


@pytest.mark.slow
def test_transformed():
    """vmap and grad of an emulated function capture the batched and the derived one."""
    step = nj.jit(lambda x: singular_values(x).sum(), policy=BY_HOST)
    x = jnp.stack([matrix(), matrix() * 2])
    got = jax.vmap(jax.grad(step))(x)
    want = jax.vmap(jax.grad(lambda x: singular_values(x).sum()))(x)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_marked_as_the_hosts():
    text = nj.jit(singular_values, policy=BY_HOST).lower(matrix()).compile().as_text()
    [line] = [line for line in text.splitlines() if "host.host_call" in line]
    assert "function=svd[" in line
    assert "# host" in line


def test_parameters_that_print_alike_are_kept_apart():
    class Silent:
        def __repr__(self) -> str:
            return "silent"

    one, other = Silent(), Silent()
    first = host_functions.register("f", print, {"x": one})
    assert host_functions.register("f", print, {"x": one}) == first
    assert host_functions.register("f", print, {"x": other}) != first


# ---- What of JAX is not public.


def test_jax_still_keeps_its_rules_where_they_are_looked_up():
    """`host_calls.on_platform` reads a private table: this tells when it moves."""
    host_calls.keep_whole("neuron")
    for primitive in (*host_calls.LINEAR_ALGEBRA, host_calls.geqrf()):
        assert primitive in mlir._lowerings  # type: ignore[attr-defined]


def test_other_platforms_keep_jax_rules():
    """Also those that share the rule of all platforms: tpu has no rule for qr."""
    nj.jit(singular_values, policy=BY_HOST)(matrix())
    for platform, call in (("cpu", "lapack_sgeqrf"), ("tpu", "Qr")):
        lowered = jax.jit(jnp.linalg.qr).trace(matrix())
        text = lowered.lower(lowering_platforms=(platform,)).as_text()
        assert call in text
        assert host_functions.CALL not in text
    hessenberg = jax.jit(jsp.linalg.hessenberg).trace(matrix())
    with pytest.raises(NotImplementedError, match="hessenberg"):
        hessenberg.lower(lowering_platforms=("tpu",))
    assert primitives.hessenberg_p in host_calls.LINEAR_ALGEBRA


def test_the_native_result_is_not_changed():
    """The primitive is JAX's own, outside and inside."""
    got = nj.jit(jnp.linalg.eigvalsh, policy=dataclasses.replace(BY_HOST, seed=1))
    assert_same(got(matrix()), jax.jit(jnp.linalg.eigvalsh)(matrix()))
