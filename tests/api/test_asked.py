"""Every verb answers about the target and the policy of what it is asked about."""

from __future__ import annotations

import functools
import gc
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.api.asked import Asked, own_setting
from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.testing.golden import golden

X = np.linspace(-1, 1, 32 * 64, dtype=np.float32).reshape(32, 64)
W = np.linspace(1, -1, 64 * 8, dtype=np.float32).reshape(64, 8)
OWN = {"target": "trn3", "policy": "mxfp8"}
OTHER = {"target": "trn1", "policy": "bf16"}


def layer(x, w):
    return jnp.tanh(x @ w)


def power(x, w, n):
    return jnp.tanh(x @ w) ** n


def saved(function, *arguments):
    return bytes(jax.export.export(jax.jit(function))(*arguments).serialize())


class Net:
    """A pytree with a method that is emulated."""

    @nj.jit(**OWN)
    def forward(self, x):
        return jnp.tanh(x @ self.w)

    def __init__(self, w):
        self.w = w


jax.tree_util.register_pytree_node(
    Net, lambda net: ((net.w,), None), lambda _, leaves: Net(*leaves)
)

#: What can be asked about, made for OWN, with the arguments of a call.
THINGS = {
    "emulated": lambda: (nj.jit(layer, **OWN), (X, W)),
    "static": lambda: (nj.jit(power, static_argnums=2, **OWN), (X, W, 2)),
    "named": lambda: (nj.jit(power, static_argnames="n", **OWN), (X, W, 2)),
    "seeded": lambda: (nj.jit(layer, **OWN).with_rounding_seed(3), (X, W)),
    "pmap": lambda: (
        nj.pmap(layer, in_axes=(0, None), **OWN),
        (X.reshape(2, 16, 64), W),
    ),
    "sharded": lambda: (
        nj.jit(
            layer,
            in_shardings=jax.NamedSharding(
                nj.make_mesh((2,), ("dp",)), jax.sharding.PartitionSpec()
            ),
            **OWN,
        ),
        (X, W),
    ),
    "method": lambda: (Net(W).forward, (X,)),
    "gradient": lambda: (
        jax.grad(nj.jit(lambda x, w: layer(x, w).sum(), **OWN)),
        (X, W),
    ),
    "batch": lambda: (jax.vmap(nj.jit(layer, **OWN), (0, None)), (X[None], W)),
    "partial": lambda: (functools.partial(nj.jit(layer, **OWN), w=W), (X,)),
    "lowered": lambda: (nj.jit(layer, **OWN).lower(X, W), (X, W)),
    "compiled": lambda: (nj.jit(layer, **OWN).lower(X, W).compile(), (X, W)),
    "loaded": lambda: (nj.load(saved(layer, X, W), **OWN), (X, W)),
    "text": lambda: (
        nj.load(nj.jit(layer).lower(X, W).as_text().encode(), **OWN),
        (X, W),
    ),
}
VERBS = {
    "compare": nj.compare,
    "against": lambda f, **given: nj.compare(f, against=f, **given),
    "compare_dump": lambda f, **given: nj.compare_dump(f, {"x": X}, **given),
    "check": nj.check,
    "tolerance": nj.tolerance,
    "profile": nj.profile,
}


#: Bounds of errors have no rule for the exchange between devices.
NO_RULE = {(v, t) for v in ("tolerance", "compare_dump") for t in ("pmap", "sharded")}
CELLS = [(v, t) for v in VERBS for t in THINGS if (v, t) not in NO_RULE]
NAMED = ("emulated", "pmap", "method", "lowered", "loaded")


def first_line(report) -> str:
    return str(report).splitlines()[0]


@pytest.mark.slow_except(
    "compare-static",
    "compare_dump-static",
    "check-text",
    "profile-text",
)
@pytest.mark.parametrize(("verb", "thing"), CELLS)
def test_a_report_is_about_what_it_was_asked_about(verb, thing):
    function, arguments = THINGS[thing]()
    line = first_line(VERBS[verb](function)(*arguments))
    assert "trn3, LNC 2, policy mxfp8" in line, line


@pytest.mark.parametrize(("verb", "thing"), [c for c in CELLS if c[1] in NAMED])
def test_what_the_verb_is_told_goes_first(verb, thing):
    function, arguments = THINGS[thing]()
    line = first_line(VERBS[verb](function, **OTHER)(*arguments))
    assert "trn1, LNC 1, policy bf16" in line, line
    line = first_line(VERBS[verb](function, policy="bf16")(*arguments))
    assert "trn3, LNC 2, policy bf16" in line, line


@pytest.mark.parametrize("thing", THINGS)
def test_an_estimate_is_for_the_own_chip_and_policy(thing):
    function, arguments = THINGS[thing]()
    found = nj.estimate(function, price_per_hour=1.0)(*arguments)
    (cost,) = found.costs
    assert (cost.machine, cost.policy) == ("trn3-ultraserver-gen2", "mxfp8")


@pytest.mark.slow_cases("pmap", "emulated", "batch")
@pytest.mark.parametrize("thing", THINGS)
def test_a_search_is_for_the_own_target(thing):
    function, arguments = THINGS[thing]()
    search = functools.partial(
        nj.search_precision, tolerance=0.5, candidates=["bf16", "fp32"], progress=False
    )
    assert "trn3, LNC 2" in first_line(search(function)(*arguments))


@pytest.mark.slow_cases("emulated", "loaded", "method", "text")
@pytest.mark.parametrize("thing", ["emulated", "method", "lowered", "loaded", "text"])
def test_a_golden_has_the_own_target_and_policy(thing, tmp_path):
    function, arguments = THINGS[thing]()
    for update in (True, False):
        guard = golden("g", function, directory=tmp_path, update=update)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            guard(*arguments)
    text = (tmp_path / "g.json").read_text()
    assert '"trn3"' in text
    assert "mxfp8" in text


@pytest.mark.parametrize("thing", ["emulated", "method", "lowered", "loaded", "text"])
def test_the_values_are_those_of_the_own_policy(thing):
    function, arguments = THINGS[thing]()
    found = nj.compare(function, reference="fp32")(*arguments)
    wanted = nj.compare(layer, reference="fp32", **OWN)(X, W)
    assert [op.accumulation for op in found.ops] == [
        op.accumulation for op in wanted.ops
    ]
    step = nj.jit(layer, **OWN)
    assert nj.tolerance(function)(*arguments).allows(step(X, W))


@pytest.mark.slow
def test_two_programs_with_a_policy_each_are_not_compared_under_one_of_them():
    first, second = nj.jit(layer, policy="bf16"), nj.jit(layer, policy="fp8")
    with pytest.raises(
        InvalidProgramError, match="different settings: policy bf16 and"
    ):
        nj.compare(first, against=second)
    with pytest.raises(InvalidProgramError, match=r"policy='bf16'"):
        nj.compare(first, against=second)
    line = first_line(nj.compare(first, against=second, policy="bf16")(X, W))
    assert "policy bf16" in line
    plain = first_line(nj.compare(layer, against=second)(X, W))
    assert "policy fp8" in plain


def test_prefill_and_decode_are_served_on_one_machine():
    traffic = dict(prompt_tokens=8, output_tokens=8, batch=1)
    one, other = nj.jit(layer, target="trn1"), nj.jit(layer, target="inf2")
    with pytest.raises(InvalidProgramError, match="instance='trn1'"):
        nj.estimate_serving(one, other, **traffic)
    found = nj.estimate_serving(layer, one, **traffic)((X, W), (X, W))
    assert {cost.machine for cost in found.costs} == {"trn1.32xlarge"}


@pytest.mark.parametrize("sdk", ["2.26", "2.32"])
def test_an_sdk_does_not_replace_a_policy_that_a_function_has(sdk):
    own = nj.check(nj.jit(layer, policy="fp8"), sdk=sdk)(X, W)
    assert f"policy fp8 (matmuls in FP8), SDK {sdk}" in first_line(own)


@pytest.mark.slow
def test_a_lowered_program_runs_under_the_policy_it_was_lowered_again_for():
    for thing in ("lowered", "loaded", "text"):
        program, arguments = THINGS[thing]()
        again = program.under(policy=nj.Policy.preset("bf16"))
        wanted = nj.jit(layer, target="trn3", policy="bf16")(X, W)
        assert (again(*arguments) == wanted).all()
        assert not (program(*arguments) == wanted).all()


def test_a_program_takes_arguments_of_its_types_alone():
    for thing in ("lowered", "loaded", "text"):
        program, (x, w) = THINGS[thing]()
        with pytest.raises(InvalidProgramError, match="float32"):
            nj.compare(program)(x[:2], w)
    with pytest.raises(InvalidProgramError, match="has no values"):
        nj.compare(program)()


@pytest.mark.parametrize("thing", ["gradient", "batch", "partial"])
def test_a_policy_that_is_named_holds_in_what_is_made_of_an_emulated_function(thing):
    function, arguments = THINGS[thing]()
    named = nj.compare(function, policy="fp32", reference="fp32")(*arguments)
    assert not any(op.accumulation.differing for op in named.ops)
    own = nj.compare(function, reference="fp32")(*arguments)
    assert any(op.accumulation.differing for op in own.ops)


def test_a_scope_around_a_report_is_named_by_it():
    with nj.policy_scope("bf16"):
        line = first_line(nj.compare(layer)(X, W))
        assert "policy bf16" in line
        assert "policy bf16" in first_line(nj.profile(layer)(X, W))


def test_a_program_has_no_native_function():
    program = nj.load(saved(layer, X, W))
    search = nj.search_precision(
        program, tolerance=0.5, reference="native", progress=False
    )
    with pytest.raises(UnsupportedError, match='instead of "native"'):
        search(X, W)


def test_delayed_scaling_is_priced_with_and_without_its_history():
    policy = nj.Policy(
        auto_cast="matmult", auto_cast_type="fp8_e4m3", scaling="delayed"
    )
    step = nj.jit(layer, policy=policy)
    given = step.with_amax_history(step.init_amax_history(X, W))
    first, second = (nj.profile(each)(X, W) for each in (step, given))
    assert first.total_seconds == second.total_seconds > 0


def test_a_plain_function_has_no_setting():
    assert own_setting(layer) == {}
    asked = Asked.of(layer)
    assert (asked.target.name, asked.policy) == ("trn2", nj.Policy.resolve(None))


@pytest.mark.parametrize("was_on", [True, False])
def test_the_garbage_collector_waits_for_a_comparison(was_on):
    """Also if the comparison ends in an error; afterwards it is as it was before."""
    seen = []

    def function(x):
        seen.append(gc.isenabled())
        return nj.cast(x, "no format") if x.ndim == 1 else x + 1

    before = gc.isenabled()
    (gc.enable if was_on else gc.disable)()
    try:
        nj.compare(function, policy="bf16")(X)
        with pytest.raises(InvalidProgramError):
            nj.compare(function, policy="bf16")(X[0])
        assert gc.isenabled() == was_on
    finally:
        (gc.enable if before else gc.disable)()
    assert set(seen) == {False}
