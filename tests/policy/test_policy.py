"""Policies: values, presets, rules, scopes, and the vendor's flags and variables.

The scope tests read real StableHLO: a name stack is what capture will see, with the
stacks of the enclosing calls in front.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
import shlex
import typing
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import neuronjax as nj
from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.policy import Policy, Preset, Rule, flags as policy_flags
from neuronjax.policy.flags import (
    FLAGS,
    IGNORED_VARIABLES,
    INERT_FLAGS,
    UNSUPPORTED_VARIABLES,
    parse_environment,
    parse_flags,
)
from neuronjax.policy.policy import unmatched_rule_error
from neuronjax.policy.scopes import active_policy, policy_from_scope, policy_scope
from neuronjax.policy.values import LEGAL, PRESETS, SDK_DEFAULTS

DOT = "stablehlo.dot_general"
EXECUTED_PRESETS = tuple(PRESETS)


# --- values -------------------------------------------------------------------------


def test_defaults_are_those_of_the_newest_sdk() -> None:
    policy = Policy()
    assert policy.sdk == "2.32"
    assert policy.auto_cast == "none"
    assert policy.mx_scale_rule == "neuron"
    assert policy == Policy.resolve(None) == Policy.for_sdk("2.32")


def test_a_preset_that_is_given_by_position_is_refused_in_words() -> None:
    with pytest.raises(TypeError, match=r"by name; .* nj.Policy.preset\('fp8'\)"):
        Policy("fp8")  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"Rule\('head'\): give fields by name"):
        Rule("head")  # type: ignore[misc]
    assert "self" not in inspect.signature(Policy).parameters
    assert "auto_cast" in inspect.signature(Policy).parameters


def test_policies_are_values() -> None:
    rules = (Rule(param="head", auto_cast="none"),)
    one, two = Policy(seed=3, rules=rules), Policy(seed=np.int64(3), rules=list(rules))
    assert one == two
    assert hash(one) == hash(two)
    assert type(two.seed) is int
    assert Policy(name="mine") == Policy()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, "seed", 4)
    with pytest.raises(TypeError):
        Policy(*["matmult"])


@pytest.mark.parametrize("field", LEGAL)
def test_every_choice_names_its_legal_values(field: str) -> None:
    with pytest.raises(InvalidProgramError) as error:
        Policy(**{field: "nonsense"})
    assert f"Policy.{field} is 'nonsense'" in str(error.value)
    assert all(repr(value) in str(error.value) for value in LEGAL[field])


@pytest.mark.parametrize("field", LEGAL)
def test_every_legal_value_is_taken(field: str) -> None:
    for value in LEGAL[field]:
        assert getattr(Policy(**{field: value}), field) == value


def test_the_nearest_value_is_suggested() -> None:
    with pytest.raises(InvalidProgramError, match="did you mean 'matmult'"):
        Policy(auto_cast="matmul")
    with pytest.raises(InvalidProgramError, match="did you mean 'stochastic'"):
        Rule(op="dot", rounding="stochastik")


@pytest.mark.parametrize(
    ("field", "value", "legal"),
    [
        ("seed", -1, "[0, 4294967295]"),
        ("seed", 2**32, "[0, 4294967295]"),
        ("seed", 0.5, "[0, 4294967295]"),
        ("seed", True, "[0, 4294967295]"),
        ("placement", (0, 0), "its own logical core"),
        ("placement", (0, -1), "its own logical core"),
        ("placement", "01", "its own logical core"),
        ("amax_history_length", 0, "[1, 2147483647]"),
        ("loss_scale", 0.0, "positive finite"),
        ("loss_scale", float("nan"), "positive finite"),
        ("loss_scale", float("inf"), "positive finite"),
        ("loss_scale", "big", "positive finite"),
        ("lnc", 3, "legal values: None, 1, 2"),
        ("rounding", ["rne"], "'rne', 'stochastic'"),
        ("rules", "head", "nj.Rule"),
        ("sdk", "2.99", "from '2.9' to '2.32'"),
        ("sdk", "newest", "from '2.9' to '2.32'"),
    ],
)
def test_bad_values_are_named(field: str, value: Any, legal: str) -> None:
    with pytest.raises(InvalidProgramError) as error:
        Policy(**{field: value})
    message = str(error.value)
    assert f"Policy.{field}" in message
    assert (value if field == "rules" else repr(value)) in message
    assert legal in message


def test_numbers_become_plain_python() -> None:
    policy = Policy(loss_scale=np.float32(1024), amax_history_length=np.int32(8))
    assert type(policy.loss_scale) is float
    assert type(policy.amax_history_length) is int


def test_tf32_pairs_only_with_itself() -> None:
    with pytest.raises(InvalidProgramError, match="pairs TF32 operands only with"):
        Policy(auto_cast_type="tf32", cotangent_type="float8_e5m2")


@pytest.mark.parametrize(
    ("fields", "forward", "cotangent"),
    [
        ({"auto_cast_type": "bf16"}, "bfloat16", "bfloat16"),
        ({"auto_cast_type": "tf32"}, "tfloat32", "tfloat32"),
        ({"auto_cast_type": "fp8_e4m3"}, "float8_e4m3", "float8_e5m2"),
        ({"auto_cast_type": "fp8"}, "float8_e4m3fn", "float8_e5m2"),
        ({"auto_cast_type": "fp8", "cotangent_type": "same"}, *["float8_e4m3fn"] * 2),
        (
            {"auto_cast_type": "fp8", "cotangent_type": "bfloat16"},
            "float8_e4m3fn",
            "bfloat16",
        ),
    ],
)
def test_operand_dtype(fields: dict[str, str], forward: str, cotangent: str) -> None:
    policy = Policy(**fields)
    assert policy.operand_dtype("forward", chip_fp8="float8_e4m3fn") == forward
    assert policy.operand_dtype("cotangent", chip_fp8="float8_e4m3fn") == cotangent


# --- presets and versions -----------------------------------------------------------


@pytest.mark.parametrize("name", EXECUTED_PRESETS)
def test_presets(name: str) -> None:
    policy = Policy.preset(name)
    assert policy.name == name
    assert policy is not Policy.resolve(name)
    assert policy == Policy.resolve(name) == Policy.resolve(policy)
    for field, value in PRESETS[name].items():
        assert getattr(policy, field) == value


def test_what_the_presets_mean() -> None:
    assert Policy.preset("fp32") == Policy(auto_cast="none")
    assert Policy.preset("bf16") == Policy(auto_cast="matmult", auto_cast_type="bf16")
    fp8 = Policy.preset("fp8")
    assert fp8.scaling == "current"
    assert fp8.operand_dtype("forward", chip_fp8="float8_e4m3") == "float8_e4m3"
    assert fp8.operand_dtype("cotangent", chip_fp8="float8_e4m3") == "float8_e5m2"


def test_what_the_microscaling_presets_mean() -> None:
    for name, weight in (("mxfp8", "mxfp8_e4m3"), ("mxfp4", "mxfp4_e2m1")):
        policy = Policy.preset(name)
        formats = {
            role: policy.operand_dtype(role, chip_fp8="float8_e4m3fn")
            for role in ("forward", "weight", "cotangent")
        }
        assert formats == {
            "forward": "mxfp8_e4m3",
            "weight": weight,
            "cotangent": "mxfp8_e4m3",
        }
        wide = dataclasses.replace(policy, cotangent_type="float8_e5m2")
        found = wide.operand_dtype("cotangent", chip_fp8="float8_e4m3fn")
        assert found == "mxfp8_e5m2"
        with pytest.raises(InvalidProgramError, match="pairs MX operands only"):
            dataclasses.replace(policy, cotangent_type="bfloat16")
        with pytest.raises(InvalidProgramError, match="use auto_cast='matmult'"):
            dataclasses.replace(policy, auto_cast="all")


def test_unknown_presets_and_policies() -> None:
    with pytest.raises(InvalidProgramError) as error:
        Policy.preset("bfp16")
    assert "policy preset is 'bfp16'" in str(error.value)
    assert "did you mean 'fp16'" in str(error.value)
    assert all(repr(name) in str(error.value) for name in PRESETS)
    with pytest.raises(InvalidProgramError, match="policy is 8, of type int"):
        Policy.resolve(8)


@pytest.mark.parametrize(
    ("version", "auto_cast", "mx_scale_rule"),
    [
        ("2.9", "matmult", "ocp_floor"),
        ("2.26", "matmult", "ocp_floor"),
        ("2.26.1", "matmult", "ocp_floor"),
        ("2.27", "none", "ocp_floor"),
        ("2.30", "none", "ocp_floor"),
        ("2.31", "none", "neuron"),
        ("2.32", "none", "neuron"),
    ],
)
def test_versioned_defaults(version: str, auto_cast: str, mx_scale_rule: str) -> None:
    policy = Policy.for_sdk(version)
    assert (policy.auto_cast, policy.mx_scale_rule) == (auto_cast, mx_scale_rule)
    assert version.startswith(policy.sdk)
    given_value = Policy(sdk=version, auto_cast="all", mx_scale_rule="even")
    assert (given_value.auto_cast, given_value.mx_scale_rule) == ("all", "even")


def test_versioned_defaults_are_legal() -> None:
    for changes in SDK_DEFAULTS.values():
        assert all(value in LEGAL[field] for field, value in changes.items())


# --- rules --------------------------------------------------------------------------


def test_rules_match_like_search_and_all_selectors_count() -> None:
    rule = Rule(param=r"head/kernel", scope=r"transpose", auto_cast="none")
    where = {"params": ("x", "params/head/kernel"), "source": "model.py:3"}
    where["module"] = "head"
    assert rule.matches(DOT, scope="jit(f)/transpose(jvp(head))/dot", **where)
    assert not rule.matches(DOT, scope="jit(f)/jvp(head)/dot", **where)
    assert not rule.matches(DOT, params=(), scope="transpose", source="", module="")
    assert Rule(module="^head$", rounding="rne").matches(DOT, scope="", **where)
    assert Rule(source=r"model\.py:3$", rounding="rne").matches(DOT, scope="", **where)
    assert not Rule(op=r"^dot", rounding="rne").matches(DOT, scope="", **where)


def test_the_last_matching_rule_counts_alone() -> None:
    rules = (
        Rule(op="dot_general", auto_cast_type="bf16", rounding="stochastic"),
        Rule(param="head", auto_cast="none"),
        Rule(param="tail", overflow="saturate"),
    )
    policy = dataclasses.replace(Policy.preset("fp8"), rules=rules)
    head = policy.for_op(DOT, params=("params/head/kernel",))
    assert policy.matching_rules(DOT, params=("params/head/kernel",)) == (0, 1)
    assert head == dataclasses.replace(policy, rules=(), auto_cast="none")
    assert head.rounding == "rne"  # rule 0 is overruled as a whole
    body = policy.for_op(DOT, params=("params/body/kernel",))
    assert (body.auto_cast_type, body.rounding) == ("bf16", "stochastic")
    assert body.operand_dtype("cotangent", chip_fp8="float8_e4m3") == "bfloat16"
    plain = policy.for_op("stablehlo.add", params=("params/body/bias",))
    assert plain == Policy.preset("fp8")
    assert policy.for_op(DOT) is policy.for_op(DOT)  # cached


def test_every_numeric_field_can_be_overridden() -> None:
    whole_program = {"seed", "loss_scale", "lnc", "placement", "sdk", "rules", "name"}
    selectors = {"op", "param", "scope", "source", "module"}
    fields = {f.name for f in dataclasses.fields(Policy)} - whole_program
    assert {f.name for f in dataclasses.fields(Rule)} - selectors == fields


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"auto_cast": "none"}, r"selects nothing[\s\S]*op, param, scope, source"),
        ({"param": "head"}, r"Rule\(param='head'\) overrides nothing"),
        ({"param": "he(ad", "auto_cast": "none"}, r"Rule.param 'he\(ad' is no regular"),
        ({"op": 3, "auto_cast": "none"}, "Rule.op 3 is no regular expression"),
        ({"op": "dot", "auto_cast": "some"}, "Rule.auto_cast is 'some'"),
        ({"op": "dot", "amax_history_length": 0}, "Rule.amax_history_length is 0"),
    ],
)
def test_bad_rules(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidProgramError, match=message):
        Rule(**fields)


def test_an_unmatched_rule_names_what_is_near() -> None:
    rule = Rule(param=r"hed/kernel$", auto_cast="none")
    paths = ["params/head/kernel", "params/head/bias", "opt/mu/0", "x"]
    error = unmatched_rule_error(rule, {"param": paths})
    assert "Rule(param='hed/kernel$', auto_cast='none') matches no op" in str(error)
    assert "matches none of 4 params; near: 'params/head/kernel'" in str(error)
    assert "stacked in one jax.lax.scan" in str(error)


def test_an_unmatched_rule_without_candidates() -> None:
    error = unmatched_rule_error(Rule(scope="mlp", auto_cast="none"), {})
    assert "scope='mlp' matches none of 0 scopes; near: none exist" in str(error)


def test_an_unmatched_rule_whose_selectors_match_apart() -> None:
    rule = Rule(param="head", op="dot", auto_cast="none")
    error = unmatched_rule_error(rule, {"param": ["head/bias"], "op": [DOT]})
    assert "no op matches all of them" in str(error)


# --- scopes -------------------------------------------------------------------------

X = jnp.ones((4, 4))
INNER = jax.jit(lambda x: x @ x)


def dot_stacks(function: Callable[..., Any], *args: Any) -> list[str]:
    """The full name stack of every dot_general, along the paths of the calls."""
    traced = jax.jit(function).trace(*args)
    lowered = traced.lower(lowering_platforms=("neuron",))
    module: Any = lowered.compiler_ir("stablehlo")
    functions = {
        op.attributes["sym_name"].value: op
        for op in module.body.operations
        if "sym_name" in op.attributes
    }

    def walk(parent: Any, prefix: str) -> Iterator[str]:
        for op in (o for r in parent.regions for b in r for o in b.operations):
            found = re.match(r'loc\("([^"]*)"', str(op.location))
            stack = f"{prefix}/{found[1] if found else ''}"
            name = op.operation.name
            if name == "stablehlo.dot_general":
                yield stack
            if name == "func.call":
                yield from walk(functions[op.attributes["callee"].value], stack)
            # Regions of while and case have stacks from the function's start on.
            manual = name == "sdy.manual_computation"
            yield from walk(op, stack if manual else prefix)

    return list(walk(functions["main"], ""))


def dot_policies(function: Callable[..., Any], *args: Any) -> list[str | None]:
    policies = [policy_from_scope(stack) for stack in dot_stacks(function, *args)]
    return [policy and policy.name for policy in policies]


def fp8_dot(x: jax.Array) -> jax.Array:
    with policy_scope("fp8"):
        return jnp.sin(x @ x)


def fp8_scan(x: jax.Array) -> jax.Array:
    with policy_scope("fp8"):
        return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, X[None])[0]


def fp8_scan_body(x: jax.Array) -> jax.Array:
    def body(c: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        with policy_scope("fp8"):
            return jnp.tanh(c @ w), None

    return jax.lax.scan(body, x, X[None])[0]


def fp8_checkpoint(x: jax.Array) -> jax.Array:
    return jax.checkpoint(fp8_dot)(x)


def fp8_around_checkpoint(x: jax.Array) -> jax.Array:
    with policy_scope("fp8"):
        return jax.checkpoint(lambda y: jnp.sin(y @ y))(x)


def fp8_inner_jit(x: jax.Array) -> jax.Array:
    with policy_scope("fp8"):
        return jnp.sin(INNER(x))


def fp8_while(x: jax.Array) -> jax.Array:
    with policy_scope("fp8"):
        return jax.lax.while_loop(lambda c: c[0, 0] < 9, lambda c: c @ x, x)


def fp8_cond(x: jax.Array) -> jax.Array:
    with policy_scope("fp8"):
        return jax.lax.cond(x[0, 0] > 0, lambda y: y @ y, jnp.sin, x)


def fp8_shard_map(x: jax.Array) -> jax.Array:
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.AbstractMesh((2,), ("d",), axis_types=auto)
    spec = jax.sharding.PartitionSpec("d")
    with policy_scope("fp8"):
        mapped = jax.shard_map(
            lambda y: y @ y.T @ y, mesh=mesh, in_specs=spec, out_specs=spec
        )
        return mapped(x)


SCOPED = [
    fp8_dot,
    fp8_scan,
    fp8_scan_body,
    fp8_checkpoint,
    fp8_around_checkpoint,
    fp8_inner_jit,
    fp8_cond,
]


def gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda x: function(x).sum())


@pytest.mark.parametrize("function", [*SCOPED, fp8_while, fp8_shard_map])
def test_scopes_survive_jit(function: Callable[..., Any]) -> None:
    assert set(dot_policies(function, X)) == {"fp8"}


@pytest.mark.parametrize("function", SCOPED)
def test_scopes_survive_grad(function: Callable[..., Any]) -> None:
    assert set(dot_policies(gradient(function), X)) == {"fp8"}


@pytest.mark.parametrize("function", SCOPED)
def test_scopes_survive_vmap_of_grad(function: Callable[..., Any]) -> None:
    assert set(dot_policies(jax.vmap(gradient(function)), X[None])) == {"fp8"}


def test_the_innermost_scope_counts() -> None:
    def nested(x: jax.Array) -> jax.Array:
        with policy_scope("bf16"):
            return fp8_checkpoint(x) @ x

    assert dot_policies(nested, X) == ["fp8", "bf16"]
    backward = dot_policies(gradient(nested), X)
    assert sorted(backward, key=str) == ["bf16"] * 2 + ["fp8"] * 4
    assert None not in dot_policies(gradient(gradient(nested)), X)


def test_inner_jits_shared_by_scopes_are_traced_for_each() -> None:
    def shared(x: jax.Array) -> jax.Array:
        with policy_scope("bf16"):
            y = INNER(x)
        return fp8_inner_jit(y) + INNER(x)

    assert dot_policies(shared, X) == ["bf16", "fp8", None]
    text = jax.jit(shared).lower(X).as_text()
    assert text.count("func.func private") == 3


def test_ops_outside_have_no_scope() -> None:
    assert dot_policies(lambda x: fp8_dot(x) @ x, X) == ["fp8", None]
    assert policy_from_scope("jit(f)/dot_general") is None


def test_a_backward_pass_pulled_outside_has_the_scope_of_the_forward_ops_only() -> None:
    """Name stacks hold scopes inside the differentiated function, not around vjp."""

    def around_vjp(x: jax.Array) -> Any:
        with policy_scope("fp8"):
            y, pull = jax.vjp(lambda z: z @ z, x)
        return pull(y)

    def inside_vjp(x: jax.Array) -> Any:
        y, pull = jax.vjp(fp8_dot, x)
        return pull(y)

    assert dot_policies(around_vjp, X) == ["fp8", None, None]
    assert set(dot_policies(inside_vjp, X)) == {"fp8"}


@pytest.mark.filterwarnings("ignore:nothing in this policy_scope")
def test_a_jit_inside_a_scope_is_traced_anew() -> None:
    seen: list[Policy | None] = []

    @jax.jit
    def function(x: jax.Array) -> jax.Array:
        seen.append(active_policy())
        return x

    function(X)
    for name in ("fp8", "bf16", "fp8"):
        with policy_scope(name):
            function(X)
    function(X)
    assert seen == [None, Policy.preset("fp8"), Policy.preset("bf16")]
    assert active_policy() is None


def test_an_outermost_jit_loses_the_name_and_keeps_the_active_policy() -> None:
    with policy_scope("fp8") as policy:
        assert dot_policies(lambda x: x @ x, X) == [None]
        assert active_policy() == policy


def test_scopes_take_policies_and_decorate() -> None:
    mine = Policy(auto_cast="all", rules=(Rule(op="dot", rounding="stochastic"),))
    (stack,) = dot_stacks(policy_scope(mine)(lambda x: x @ x), X)
    assert policy_from_scope(stack) == mine
    with pytest.raises(InvalidProgramError, match="policy preset is 'fp7'"):
        policy_scope("fp7").__enter__()


def test_scope_names_depend_on_the_value_alone() -> None:
    def stack(policy: Policy) -> list[str]:
        def function(x: jax.Array) -> jax.Array:
            with policy_scope(policy):
                return x @ x

        return dot_stacks(function, X)

    assert stack(Policy(seed=1)) == stack(Policy(seed=1, name="one"))
    assert stack(Policy(seed=1)) != stack(Policy(seed=2))


def test_scopes_of_another_process_are_refused() -> None:
    with pytest.raises(InvalidProgramError, match="this process has not made"):
        policy_from_scope("jit(f)/neuronjax.policy.0123456789abcdef/dot_general")


# --- compiler flags -----------------------------------------------------------------


def test_flags_of_a_training_script() -> None:
    flags = (
        "--auto-cast=matmult --auto-cast-type=bf16 --lnc=2 -O1"
        " --model-type transformer --enable-mixed-precision-accumulation"
        " --enable-saturate-infinity --target trn2 --retry_failed_compilation"
    )
    assert Policy.from_flags(flags) == dataclasses.replace(Policy.preset("bf16"), lnc=2)
    parsed = parse_flags(flags)
    assert parsed.target == "trn2"
    assert parsed.inert == (
        ("--optlevel", "1"),
        ("--model-type", "transformer"),
        ("--enable-mixed-precision-accumulation", ""),
        ("--enable-saturate-infinity", ""),
        ("--target", "trn2"),
        ("--retry_failed_compilation", ""),
    )


def test_no_flags_mean_the_defaults_of_the_sdk() -> None:
    assert Policy.from_flags("") == Policy()
    assert Policy.from_flags("", sdk="2.26").auto_cast == "matmult"
    assert Policy.from_flags("--auto-cast none", sdk="2.26").auto_cast == "none"


def test_the_compiler_knows_no_roles() -> None:
    policy = Policy.from_flags("--auto-cast=all --auto-cast-type=fp8_e4m3")
    assert policy.operand_dtype("cotangent", chip_fp8="") == "float8_e4m3"
    assert policy.scaling == "none"


def test_the_right_most_of_competing_flags_counts() -> None:
    assert Policy.from_flags("--auto-cast all --auto-cast none") == Policy()
    flags = "--auto-cast-type=fp8_e4m3 --auto-cast-type=tf32"
    assert Policy.from_flags(flags) == Policy(auto_cast_type="tf32")
    accumulation = "mixed-precision-accumulation"
    assert Policy.from_flags(f"--disable-{accumulation} --enable-{accumulation}")
    with pytest.raises(UnsupportedError, match=f"--disable-{accumulation}"):
        Policy.from_flags(f"--enable-{accumulation} --disable-{accumulation}")


@pytest.mark.parametrize(
    "flags", ["--lnc=1", "--lnc 1", "-lnc=1", "--logical-nc-config 1", ["--lnc", "1"]]
)
def test_spellings_of_the_logical_core(flags: str | list[str]) -> None:
    assert Policy.from_flags(flags) == Policy(lnc=1)


@pytest.mark.parametrize("flags", ["-O3", "-O 3", "-O=3", "--optlevel=3"])
def test_spellings_of_the_optimization_level(flags: str) -> None:
    assert parse_flags(flags).inert == (("--optlevel", "3"),)


@pytest.mark.parametrize(
    "flags",
    [
        "--disable-mixed-precision-accumulation",
        "--native-int64=disabled",
        "--implicit-integer-downcast dot,pow",
        "--experimental-unsafe-fp8e4m3fn-as-fp8e4m3",
        "--tensorizer-options='--enable-ccop-compute-overlap --vectorize'",
        "--internal-hlo2tensorizer-options=--verify-hlo=true",
        "--internal-backend-options=--verbose",
        "--fast-math=all",
        "--fp32-cast matmult",
    ],
)
def test_flags_of_the_vendor_that_are_not_emulated(flags: str) -> None:
    with pytest.raises(UnsupportedError) as error:
        Policy.from_flags(flags)
    assert f"compiler flag {re.split('[= ]', flags)[0]}" in str(error.value)
    assert "is not emulated" in str(error.value)
    assert "drop the flag" in str(error.value)


@pytest.mark.parametrize(
    "flags",
    [
        "--native-int64=default",
        "--implicit-integer-downcast default",
        "--implicit-integer-downcast=all",
    ],
)
def test_the_vendors_defaults_may_be_spelt_out(flags: str) -> None:
    assert Policy.from_flags(flags) == Policy()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--auto-cats=all", r"unknown compiler flag '--auto-cats'[\s\S]*--auto-cast;"),
        ("—-target trn1", r"unknown compiler flag '—-target'[\s\S]*--target;"),
        ("model.hlo", "unknown compiler flag 'model.hlo'"),
        (
            "--auto-cast=some",
            r"--auto-cast does not take 'some'[\s\S]*none, matmult, all",
        ),
        (
            "--auto-cast-type fp8_e5m2",
            r"--auto-cast-type does not take 'fp8_e5m2'[\s\S]*fp8_e4m3",
        ),
        ("--lnc=4", r"--lnc does not take '4'[\s\S]*1, 2"),
        ("-O4", r"-O does not take '4'"),
        ("--auto-cast --lnc=1", r"--auto-cast needs a value[\s\S]*none, matmult, all"),
        ("--logfile", r"--logfile needs a value[\s\S]*any text"),
        ("--enable-saturate-infinity=yes", "takes no value, got 'yes'"),
        ("--output='a", "cannot be split: No closing quotation"),
    ],
)
def test_bad_flags(flags: str, message: str) -> None:
    with pytest.raises(InvalidProgramError, match=message):
        Policy.from_flags(flags)


def test_the_table_of_flags_is_consistent() -> None:
    names = [name for flag in FLAGS for name in flag.names]
    assert len(names) == len(set(names))
    fields = {f.name for f in dataclasses.fields(Policy)}
    for flag in FLAGS:
        values = {""} if flag.values is None else set(flag.values)
        assert set(flag.sets) <= values or not values
        assert all(set(sets) <= fields for sets in flag.sets.values())
    assert {"--target", "-O", "--verbose"} <= INERT_FLAGS
    assert INERT_FLAGS.isdisjoint({"--auto-cast", "--tensorizer-options"})


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[list[str], dict[str, Any]]:
    """Words of a command line without errors, and the fields it must set."""
    usable = [flag for flag in FLAGS if not flag.unsupported and not flag.key]
    words: list[str] = []
    chosen: dict[str, dict[str, Any]] = {}
    for flag in draw(st.lists(st.sampled_from(usable), max_size=8)):
        name = draw(st.sampled_from(flag.names))
        if flag.values is None:
            words += [name]
            continue
        text = st.text("abc /=.'", min_size=1).filter(lambda t: not t.startswith("-"))
        value = draw(st.sampled_from(flag.values) if flag.values else text)
        words += draw(st.sampled_from([[f"{name}={value}"], [name, value]]))
        chosen[flag.name] = dict(flag.sets.get(value, {}))
    return words, {k: v for sets in chosen.values() for k, v in sets.items()}


@pytest.mark.slow
@given(command_lines())
def test_flags_round_trip(case: tuple[list[str], dict[str, Any]]) -> None:
    words, fields = case
    expected = Policy(**fields)
    assert Policy.from_flags(words) == expected
    assert Policy.from_flags(shlex.join(words)) == expected
    assert Policy.from_environment({"NEURON_CC_FLAGS": shlex.join(words)}) == expected


NAMES = st.sampled_from([name for flag in FLAGS for name in flag.names])


@pytest.mark.slow
@given(st.lists(NAMES | st.text("-=O1 a'", max_size=8), max_size=4))
def test_any_words_parse_or_raise_an_error_of_ours(words: list[str]) -> None:
    for flags in (words, "".join(words), " ".join(words)):
        with contextlib.suppress(InvalidProgramError, UnsupportedError):
            assert Policy.from_flags(flags).describe()


# --- environment variables ----------------------------------------------------------


def test_environment() -> None:
    policy = Policy.from_environment(
        {
            "NEURON_CC_FLAGS": "--auto-cast matmult --lnc 1"
            " --internal-backend-options=--enable-mx-alternative-emax",
            "NEURON_RT_ENABLE_OCP": "1",
            "NEURON_RT_ENABLE_OCP_SATURATION": "1",
            "NEURON_RT_STOCHASTIC_ROUNDING_EN": "TRUE",
            "NEURON_RT_STOCHASTIC_ROUNDING_SEED": "17",
            "NEURON_LOGICAL_NC_CONFIG": "1",
            "NEURON_RT_VISIBLE_CORES": "0-3",
            "PATH": "/usr/bin",
        }
    )
    bf16 = Policy.preset("bf16")
    stochastic = dataclasses.replace(bf16, rounding="stochastic", seed=17, lnc=1)
    modes = {"overflow": "saturate", "mx_emax": "alternative"}
    assert policy == dataclasses.replace(stochastic, **modes)


def test_the_process_environment_is_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--auto-cast=all")
    assert Policy.from_environment().auto_cast == "all"


@pytest.mark.parametrize("text", ["", "0", "false"])
def test_stochastic_rounding_is_off_by_default(text: str) -> None:
    assert Policy.from_environment({}) == Policy()
    environ = {"NEURON_RT_STOCHASTIC_ROUNDING_EN": text}
    assert Policy.from_environment(environ) == Policy()


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"NEURON_RT_STOCHASTIC_ROUNDING_EN": "yes"}, "_EN is 'yes'"),
        ({"NEURON_RT_STOCHASTIC_ROUNDING_SEED": "x"}, "_SEED is 'x'"),
        ({"NEURON_RT_STOCHASTIC_ROUNDING_SEED": "-1"}, "Policy.seed is -1"),
        ({"NEURON_LOGICAL_NC_CONFIG": "3"}, "Policy.lnc is 3"),
        (
            {"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_CC_FLAGS": "--lnc=2"},
            "NEURON_LOGICAL_NC_CONFIG is 1 but --lnc is 2",
        ),
    ],
)
def test_bad_variables(environ: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidProgramError, match=message):
        Policy.from_environment(environ)


@pytest.mark.parametrize("name", UNSUPPORTED_VARIABLES)
def test_variables_that_are_not_emulated(name: str) -> None:
    assert Policy.from_environment({name: "0"}) == Policy()
    with pytest.raises(UnsupportedError, match=f"{name} is not emulated"):
        Policy.from_environment({name: "1"})


def test_the_simulators_all_fp32_mode_is_not_emulated() -> None:
    assert Policy.from_environment({"NKI_PRECISE_FP": "1"}) == Policy()
    with pytest.raises(UnsupportedError, match="NKI_PRECISE_FP=0"):
        Policy.from_environment({"NKI_PRECISE_FP": "0"})


@pytest.mark.parametrize("name", IGNORED_VARIABLES)
def test_variables_that_change_no_number(name: str) -> None:
    assert parse_environment({name: "1"}) == parse_flags("")
    assert policy_flags.IGNORED_VARIABLES[name]


# --- description --------------------------------------------------------------------


def test_describe() -> None:
    policy = dataclasses.replace(
        Policy.preset("fp8"),
        rounding="stochastic",
        seed=7,
        rules=(Rule(param="head", auto_cast="none"),),
    )
    assert policy.describe() == (
        "policy fp8, SDK 2.32\n"
        "  casts: FP32 operands of matmuls to the chip's FP8, gradients to"
        " float8_e5m2\n"
        "  rounding: stochastic\n"
        "  accumulation: float32 within a tile, float32 across tiles"
        " (systolic)\n"
        "  seed: 7\n"
        "  scaling: current\n"
        "  rule 0: Rule(param='head', auto_cast='none')"
    )


def test_describe_names_only_what_differs_from_the_sdk() -> None:
    assert Policy(sdk="2.30").describe() == (
        "policy (unnamed), SDK 2.30\n"
        "  casts: none; every op computes in its declared dtype\n"
        "  rounding: rne\n"
        "  accumulation: float32 within a tile, float32 across tiles (systolic)"
    )
    host = Policy(accumulation="host", transcendentals="host", loss_scale=1024)
    assert "no promise of an order" in host.describe()
    assert "transcendentals: host" in host.describe()
    assert "loss_scale: 1024.0" in host.describe()


@pytest.mark.parametrize(
    ("policy", "is_idle"),
    [
        ({"rules": ({"op": "sine", "auto_cast_type": "bf16"},)}, True),
        ({"rules": ({"op": "dot_general", "auto_cast_type": "fp16"},)}, True),
        ({"rules": ({"op": "sine|exp", "auto_cast": "matmult"},)}, True),
        ({"rules": ({"op": "dot_general", "auto_cast": "matmult"},)}, False),
        ({"rules": ({"op": "sine", "auto_cast": "all"},)}, False),
        ({"rules": ({"op": "sine", "auto_cast": "none"},), "auto_cast": "all"}, False),
        ({"rules": ({"op": "", "auto_cast": "matmult"},)}, False),
        ({"rules": ({"op": "sine", "transcendentals": "host"},)}, False),
    ],
)
def test_a_rule_that_can_change_nothing_is_an_error(policy, is_idle):
    rules = tuple(Rule(**rule) for rule in policy["rules"])
    policy = Policy(**{"auto_cast": "none", **policy, "rules": rules})
    step = nj.jit(lambda x: jnp.sin(x @ x), policy=policy)
    if not is_idle:
        step(jnp.eye(4))
        return
    with pytest.raises(InvalidProgramError, match="can change nothing") as raised:
        step(jnp.eye(4))
    assert repr(rules[0]) in str(raised.value)


def test_repr_is_the_name_and_what_differs_and_makes_it_again():
    fp8 = Policy.preset("fp8")
    assert repr(fp8) == (
        "Policy(name='fp8', auto_cast='matmult', auto_cast_type='fp8',"
        " scaling='current')"
    )
    assert repr(Policy()) == "Policy()"
    rule = Rule(param="head", auto_cast="none")
    for policy in (
        dataclasses.replace(fp8, rules=(rule,), lnc=1, loss_scale=8.0),
        Policy.for_sdk("2.9"),
        Policy(sdk="2.9", auto_cast="none"),
    ):
        assert eval(repr(policy), {"Policy": Policy, "Rule": Rule}) == policy


def test_editors_complete_the_presets():
    assert typing.get_args(Preset) == tuple(PRESETS)
    for verb in (nj.jit, nj.compare, nj.profile, nj.emulated, nj.load):
        said = inspect.signature(verb).parameters["policy"].annotation
        assert said == "Preset | str | Policy | None"
    assert all(f'"{name}"' in str(nj.jit.__doc__) for name in PRESETS)
