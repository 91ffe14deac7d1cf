"""`check`: every rule on a program it is about and on a near miss, and the report."""

from __future__ import annotations

import contextlib
import inspect
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.mlir import ir
from jax.interpreters import mlir

import neuronjax as nj
from neuronjax.api.check import check
from neuronjax.capture.decode import decode_module
from neuronjax.diagnostics.findings import SEVERITIES, PortabilityReport, cited_keys
from neuronjax.diagnostics.portability import examine, from_error
from neuronjax.diagnostics.rules import PROGRAM_RULES, RULES
from neuronjax.diagnostics.rules.dtypes import DTYPE_RULES
from neuronjax.diagnostics.rules.operators import LISTED
from neuronjax.hardware import resolve_target
from neuronjax.policy import Policy
from tests.diagnostics.cases import CASES, Case, Source, f32, i32

HERE = Path(__file__).name


def parsed(text: str) -> Any:
    with mlir.make_ir_context():
        return decode_module(ir.Module.parse(text))


def checked(source: Source, args: tuple, target: str, sdk: str) -> PortabilityReport:
    if callable(source):
        return check(source, target=target, sdk=sdk)(*args)
    return examine(
        parsed(source),
        target=resolve_target(target),
        policy=Policy.for_sdk(sdk),
    )


def found(report: PortabilityReport, rule: str, severity: str) -> list:
    return [f for f in report.findings if (f.rule, f.severity) == (rule, severity)]


@pytest.mark.slow_except(
    "*-dynamic-while",
    "*-mx-scales",
    "*-power-exponent",
    "*-float64",
)
@pytest.mark.parametrize(
    "case", CASES, ids=[f"{i}-{case.rule}" for i, case in enumerate(CASES)]
)
def test_rule(case: Case):
    with jax.enable_x64(True) if case.x64 else contextlib.nullcontext():
        bad = checked(case.bad, case.args, case.target, case.sdk)
        good = checked(
            case.good,
            case.args if case.good_args is None else case.good_args,
            case.good_target or case.target,
            case.good_sdk or case.sdk,
        )
    assert found(bad, case.rule, case.severity), str(bad)
    assert not found(good, case.rule, case.severity), str(good)
    for finding in bad.findings:
        assert finding.remedy
        assert finding.source
    assert bad.ok == (not any(f.severity == "error" for f in bad.findings))


def test_every_rule_has_a_case():
    rules = {rule.id for rule in (*RULES, *PROGRAM_RULES, *DTYPE_RULES)}
    # No chip is without float8_e4m3; see the test below.
    assert rules - {case.rule for case in CASES} == {"fp8-e4m3"}


def test_every_rule_reads_well():
    for rule in (*RULES, *PROGRAM_RULES, *DTYPE_RULES):
        assert rule.severity in SEVERITIES
        assert not rule.title.endswith(".")
        assert cited_keys(rule.source) or rule.source.startswith(
            ("JAX", "neuronjax", "IEEE")
        )


# -- where -----------------------------------------------------------------------------


def line_of(text: str) -> str:
    """The line of this file that holds a text, marked `# <text>`."""
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"# {text}")]
    return f"{HERE}:{number}"


def test_library_code_has_the_line_of_its_call():
    def program(x):
        first = jnp.argmax(x)  # first argmax
        return first + jnp.argmax(x)  # second argmax

    report = check(program)(f32(8))
    places = [f.location for f in found(report, "variadic-reduction", "error")]
    assert [Path(p).name for p in places] == [
        line_of("first argmax"),
        line_of("second argmax"),
    ]


def test_keys_of_rbg_are_derived_by_threefry():
    """JAX keeps what it traced of its own functions, with the first caller's line."""
    jax.eval_shape(jax.random.fold_in, jax.random.key(1, impl="rbg"), 0)

    def program(key, x):
        key = jax.random.fold_in(key, 1)  # the key is derived
        return x * jax.random.uniform(key, x.shape)

    report = check(program)(jax.random.key(0, impl="rbg"), f32(8))
    (finding,) = found(report, "threefry", "warning")
    assert Path(finding.location).name == line_of("the key is derived")
    assert "keys of rbg" in finding.message
    assert "unsafe_rbg" in finding.remedy
    report = check(program)(jax.random.key(0, impl="unsafe_rbg"), f32(8))
    assert not found(report, "threefry", "warning")


def test_a_line_is_one_finding_with_a_count():
    def program(x):
        return sum(jnp.argmax(x + i) for i in range(3))

    (finding,) = found(check(program)(f32(8)), "variadic-reduction", "error")
    assert finding.count == 3
    assert finding.op == "stablehlo.reduce"


def test_a_function_called_twice_counts_twice():
    @jax.jit
    def inner(x):
        return lax.reduce_precision(x, 5, 10)  # the precision

    def program(x):
        return inner(inner(x))

    (finding,) = found(check(program)(f32(8)), "reduce-precision", "error")
    assert finding.count == 2
    assert finding.location.endswith(line_of("the precision"))
    assert "reduce_precision" in finding.scope


def test_only_the_branch_that_is_taken_counts():
    def program(x):
        return lax.switch(jnp.int32(1), [jnp.argmax, lambda x: jnp.int32(0)], x)

    assert check(program)(f32(8)).findings == ()


def test_facts_pass_through_calls():
    @jax.jit
    def pick(x, i):
        return x[i]

    def program(x):
        return pick(x, jnp.array([0, 1])), pick(x, jnp.array([0, 11]))

    (finding,) = check(program)(f32(8)).findings
    assert "index 11, outside 0 to 7" in finding.message


# -- what a real program gets ----------------------------------------------------------


def test_a_plain_train_step_is_portable():
    def loss(w, x):
        return jnp.mean((jnp.tanh(x @ w["first"]) @ w["second"]) ** 2)

    def step(w, x):
        gradient = jax.grad(loss)(w, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradient)

    weights = {"first": f32(16, 32), "second": f32(32, 4)}
    for target in ("trn1", "trn2", "trn3", "inf2", "trn2.48xlarge"):
        report = check(step, target=target)(weights, f32(8, 16))
        assert report.findings == (), str(report)
        assert report.ok
        assert report.target == target


def test_an_emulated_function_is_checked_for_the_target_given():
    emulated = nj.jit(lambda x: x.astype(jnp.float8_e4m3fn), target="trn3")
    assert not check(emulated, target="trn2")(f32(8)).ok
    assert check(emulated, target="trn3")(f32(8)).ok


def test_static_arguments():
    def program(x, n):
        return lax.fori_loop(0, n, lambda i, c: c * 2, x)

    assert check(program, static_argnums=1)(f32(8), 3).ok
    assert not check(program)(f32(8), i32()).ok


def test_wrong_options_are_named():
    for options in ({"target": "trn9"}, {"sdk": "9.9"}, {"policy": "fp9"}):
        with pytest.raises(nj.InvalidProgramError, match=next(iter(options.values()))):
            check(lambda x: x, **options)


def test_a_dynamic_shape_is_a_finding():
    dynamic = "tensor<?xf32>"
    text = (
        f"func.func public @main(%a: {dynamic}) -> {dynamic} {{return %a : {dynamic}}}"
    )
    with pytest.raises(nj.NeuronJaxError) as caught:
        parsed(text)
    assert from_error(caught.value).rule == "dynamic-shape"


# -- the report ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report() -> PortabilityReport:
    def program(x, n):
        total = n.sum() + jnp.argmax(x)
        return jnp.sort(x)[n] + total, lax.fori_loop(0, n[0], lambda i, c: c + 1, x)

    return check(program, target="trn1")(f32(8), i32(8))


def test_errors_come_first(report):
    order = [SEVERITIES.index(f.severity) for f in report.findings]
    assert order == sorted(order)
    assert {f.severity for f in report.findings} == set(SEVERITIES)
    assert report.count("error") == 2


def test_the_text_fits_in_80_columns(report):
    text = str(report)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    words = text.split()
    for finding in report.findings:
        assert f"{finding.rule}:" in words or finding.rule in words
    assert "2 errors" in text
    assert "JK: frameworks/jax/setup/jax-neuronx-known-issues.rst" in text


def test_the_empty_report():
    assert "Nothing found." in str(check(jnp.sin)(f32(8)))


def test_the_report_as_json(report):
    data = json.loads(report.to_json())
    assert data == report.as_dict() | {"findings": data["findings"]}
    assert "JK" in data["documents"]
    assert data["ok"] is False
    assert data["target"] == "trn1"
    assert data["sdk"] == "2.32"
    assert [f["rule"] for f in data["findings"]] == [f.rule for f in report.findings]


# -- data ------------------------------------------------------------------------------


def test_listed_operators_are_stablehlo_ops():
    from jax.extend.mlir.dialects import stablehlo

    names = {
        op.OPERATION_NAME.removeprefix("stablehlo.")
        for op in vars(stablehlo).values()
        if hasattr(op, "OPERATION_NAME")
    }
    assert names >= LISTED


def test_e4m3_is_refused_where_a_chip_lacks_it():
    (rule,) = [rule for rule in DTYPE_RULES if rule.id == "fp8-e4m3"]
    assert rule.dtypes == ("float8_e4m3",)
    report = check(lambda x: x.astype(jnp.float8_e4m3), target="trn3")(f32(8))
    assert not found(report, "fp8-e4m3", "error")


def test_numbers_are_those_of_the_program():
    big = np.zeros(1 << 17, np.int32)
    report = check(lambda x: x[jnp.asarray(big)])(f32(8))
    assert report.findings == ()
