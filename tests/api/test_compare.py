"""`compare` on programs whose errors are known."""

import inspect
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from neuronjax.api.compare import compare
from neuronjax.api.jit import jit
from neuronjax.api.tolerance import tolerance
from neuronjax.capture.trace import capture
from neuronjax.cli import app
from neuronjax.diagnostics.compare import Setting
from neuronjax.diagnostics.op_walk import ParallelWalk
from neuronjax.diagnostics.parallel_runs import Fed
from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import resolve_target
from neuronjax.policy import Policy, Rule

SIZE = (8, 8)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def two_layers(x, w):
    with jax.named_scope("first"):
        h = jnp.tanh(x @ w)
    with jax.named_scope("second"):
        return h @ w


def by_op(comparison, name):
    return [r for r in comparison.ops if r.op == f"stablehlo.{name}"]


def test_the_same_policy_differs_in_nothing():
    comparison = compare(two_layers, policy="bf16", reference="bf16")(
        normal(*SIZE), normal(*SIZE)
    )
    assert comparison.tolerance == 0
    assert comparison.first_divergence is None
    assert all(r.accumulation.differing == 0 for r in comparison.ops)


def test_a_cast_dot_errs_and_the_rest_does_not():
    comparison = compare(two_layers, policy="bf16", reference="float32")(
        normal(*SIZE), normal(*SIZE)
    )
    assert {r.op for r in comparison.differing} == {"stablehlo.dot_general"}
    [tanh] = by_op(comparison, "tanh")
    assert tanh.isolation.differing == 0
    assert 1e-4 < tanh.accumulation.relative_l2 < 1e-2
    assert 1e-4 < comparison.differing[0].isolation.relative_l2 < 1e-2
    modules = {row["module"] for row in comparison.by_module()}
    assert modules == {"first", "second"}
    lines = [row["source"] for row in comparison.by_source()]
    assert any("test_compare.py" in line for line in lines)


@pytest.mark.slow
def test_isolation_is_the_op_on_the_references_values():
    """By hand: the second dot on the FP32 reference's hidden values."""
    x, w = normal(*SIZE), normal(*SIZE, seed=1)
    comparison = compare(two_layers, policy="bf16", reference="fp32")(x, w)
    h = jit(lambda x, w: jnp.tanh(x @ w), policy="fp32")(x, w)
    dot = lambda a, b: a @ b  # noqa: E731
    ours = np.asarray(jit(dot, policy="bf16")(h, w), np.float64)
    theirs = np.asarray(jit(dot, policy="fp32")(h, w), np.float64)
    expected = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    second = by_op(comparison, "dot_general")[1]
    assert second.isolation.relative_l2 == pytest.approx(expected, rel=1e-12)
    final = jit(two_layers, policy="bf16")(x, w)
    reference = jit(two_layers, policy="fp32")(x, w)
    difference = np.asarray(final, np.float64) - np.asarray(reference, np.float64)
    error = np.linalg.norm(difference) / np.linalg.norm(np.asarray(reference))
    assert second.accumulation.relative_l2 == pytest.approx(error, rel=1e-6)


@pytest.mark.slow
def test_float64_is_double_precision():
    def function(x, w):
        return jax.nn.softmax(jnp.cumsum(x @ w, axis=0)), jnp.sort(x)[::-1]

    x, w = normal(*SIZE), normal(*SIZE, seed=1)
    comparison = compare(function, policy="fp32", reference="float64")(x, w)
    softmax = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    assert comparison.notes == ()
    assert max(r.accumulation.relative_l2 for r in comparison.ops) < 1e-5
    [dot] = by_op(comparison, "dot_general")
    ours = np.asarray(jit(lambda x, w: x @ w, policy="fp32")(x, w), np.float64)
    expected = np.linalg.norm(ours - softmax) / np.linalg.norm(softmax)
    assert dot.isolation.relative_l2 == pytest.approx(expected, rel=1e-9)


def test_float64_rounded_keeps_the_programs_casts():
    def function(x):
        return x.astype(jnp.bfloat16).astype(jnp.float32) * 2

    options = dict(policy="fp32", tolerance=1e-6)
    ideal = compare(function, reference="float64", **options)(normal(64))
    rounded = compare(function, reference="float64_rounded", **options)(normal(64))
    assert ideal.ops[-1].accumulation.relative_l2 > 1e-4
    assert rounded.ops[-1].accumulation.differing == 0


@pytest.mark.slow
def test_an_instruction_without_a_float64_rule_is_noted():
    policy = "fp32,host_custom_calls=True"
    comparison = compare(jnp.linalg.qr, policy=policy, reference="float64")(jnp.eye(4))
    assert any("host_call" in note for note in comparison.notes)


def overflowing(x):
    """The exponential overflows in one layer, in FP16."""
    with jax.named_scope("before"):
        y = x * 1.5
    with jax.named_scope("hot"):
        y = jnp.exp(y.astype(jnp.float16) * 8).astype(jnp.float32)
    with jax.named_scope("after"):
        return jnp.log(y + 1)


@pytest.mark.slow
def test_first_divergence_names_the_op_that_overflows():
    x = jnp.linspace(0.0, 1.0, 16)
    comparison = compare(overflowing, policy="fp32", tolerance=0.1)(x)
    first = comparison.first_divergence
    assert first is not None
    assert first.record.module == "hot"
    assert first.record.op == "stablehlo.exponential"
    assert [c.op for c in first.causes] == ["stablehlo.exponential"]
    assert first.verified
    assert first.errors.nonfinite_changed > 0
    assert "hot" in str(comparison)


def test_causes_lie_before_the_divergence():
    """A small error that a subtraction blows up: the dot explains it, not the op."""

    def cancelling(x, w):
        return (x @ w - x @ w * 1.0001) @ w

    x, w = normal(*SIZE), normal(*SIZE, seed=1)
    comparison = compare(cancelling, policy="bf16", tolerance=0.003)(x, w)
    first = comparison.first_divergence
    assert first is not None
    assert {c.op for c in first.causes} == {"stablehlo.dot_general"}
    assert all(c.number <= first.record.number for c in first.causes)


def variance(x):
    m2 = jnp.mean(x * x, -1)  # the mean of squares
    m = jnp.mean(x, -1)  # the mean
    return m2 - m * m


def variance_in_a_scan(x):
    return jax.lax.scan(lambda c, x: (c, jax.jit(variance)(x)), 0.0, x)[1]


def variance_behind_moves(x):
    return jnp.exp(variance(x).reshape(2, -1).T.astype(jnp.float32))


@pytest.mark.slow_except("variance")
@pytest.mark.parametrize(
    "function", [variance, variance_in_a_scan, variance_behind_moves]
)
def test_roundings_on_write_explain_a_cancellation(function):
    """Both means are rounded to BF16 where they are written; neither explains alone."""
    x = 30 + np.random.default_rng(0).standard_normal((4, 512))
    report = compare(function, policy="bf16", tolerance=0.1)(x.astype(jnp.bfloat16))
    first = report.first_divergence
    assert first is not None
    assert first.record.op == "stablehlo.subtract"
    lines = inspect.getsource(variance).splitlines()
    start = inspect.getsourcelines(variance)[1]
    marked = [start + n for n, line in enumerate(lines) if "# the mean" in line]
    assert all(r.only_rounds for r in first.causes)
    assert len(first.causes) <= 3
    found = [(r.op, int(r.source.rpartition(":")[2])) for r in first.causes]
    assert {("stablehlo.convert", line) for line in marked} <= set(found)
    assert " more by rounding alone" in " ".join(str(report).split())


@pytest.mark.slow
def test_a_wide_reference_leaves_an_op_its_own_error():
    """Behind healed roundings the saturated one stays what explains."""

    def function(x):
        y = (x * 3).astype(jnp.float8_e4m3fn).astype(jnp.float32)
        return jnp.sum(jnp.exp(-y * y))

    policy = Policy(overflow="saturate")
    compared = compare(function, target="trn3", policy=policy, tolerance=0.1)
    first = compared(np.linspace(0.1, 300, 64, dtype=np.float32)).first_divergence
    assert first is not None
    assert [r.op for r in first.causes] == ["stablehlo.convert"]


def test_loops_by_iteration():
    def function(x, w):
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, length=5)[0]

    comparison = compare(function, policy="bf16")(normal(*SIZE), normal(*SIZE) * 0.3)
    [dot] = by_op(comparison, "dot_general")
    assert dot.executions == 5
    rows = comparison.iterations(dot.number)
    assert [row["iteration"] for row in rows] == [(n,) for n in range(5)]
    assert rows[0]["accumulation_relative_l2"] == rows[0]["isolation_relative_l2"]
    assert rows[4]["accumulation_relative_l2"] > rows[4]["isolation_relative_l2"]


@pytest.mark.slow
def test_a_loop_that_runs_longer_is_an_error_of_the_loop():
    def function(x, w):
        def small(state):
            return jnp.abs(state[0]).max() < 40.0

        def grow(state):
            return state[0] @ w, state[1] + 1

        return jax.lax.while_loop(small, grow, (x, 0))

    x, w = jnp.ones((1, 2)), jnp.eye(2) * 2.5150  # 2.515625 in BF16
    power = compare(function, policy="bf16", reference="float32")(x, w)
    assert by_op(power, "while")[0].accumulation.differing == 0  # 4 iterations each
    limit = jnp.full((1, 2), 40 / 2.5150**3 * 0.9999)
    longer = compare(function, policy="bf16", reference="float32")(limit, w)
    [loop] = by_op(longer, "while")
    assert loop.accumulation.differing == 1


@pytest.mark.slow
def test_another_branch_is_an_error_of_the_branch():
    def function(x, w):
        return jax.lax.cond((x @ w)[0, 0] > 2.515, jnp.sin, jnp.cos, x)

    x, w = jnp.ones((1, 2)), jnp.eye(2) * 2.5150
    comparison = compare(function, policy="bf16")(x, w)
    [case] = by_op(comparison, "case")
    assert case.accumulation.differing == 1


def test_three_way():
    x, w = normal(*SIZE), normal(*SIZE, seed=1)
    options: dict[str, Any] = dict(policy="fp8", reference="bf16", baseline="float32")
    comparison = compare(two_layers, **options)(x, w)
    rows = {row["op"]: row for row in comparison.three_way()}
    dot = rows["stablehlo.dot_general"]
    assert dot["expected_relative_l2"] < dot["actual_relative_l2"]
    assert dot["ratio"] > 1.2
    assert "expected" in str(comparison)
    alone = compare(two_layers, policy="bf16")(x, w)
    with pytest.raises(InvalidProgramError, match="baseline"):
        alone.three_way()


def test_stochastic_rounding_draws_the_same_bits_on_both_sides():
    policy = Policy(auto_cast="matmult", rounding="stochastic", seed=3)
    arguments = normal(*SIZE), normal(*SIZE, seed=1)
    same = compare(two_layers, policy=policy, reference=policy)(*arguments)
    assert all(r.accumulation.differing == 0 for r in same.ops)
    other = Policy(auto_cast="matmult", rounding="stochastic", seed=4)
    differs = compare(two_layers, policy=policy, reference=other)(*arguments)
    assert by_op(differs, "dot_general")[0].isolation.differing > 0


@pytest.mark.slow
def test_the_emulated_values_are_those_of_a_run():
    """Bit for bit; rounding keys in a scan, a call and a branch included."""
    policy = Policy(auto_cast="matmult", rounding="stochastic", seed=3)

    def function(x, w):
        inner = jax.jit(lambda c: jnp.tanh(c @ w))
        y = jax.lax.scan(lambda c, _: (inner(c), None), x, length=3)[0] @ w
        return [jax.lax.cond(y[0, 0] > 0, lambda y: y @ w, lambda y: w @ y, y)]

    x, w = normal(*SIZE), normal(*SIZE, seed=1)
    types = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (x, w))
    program = capture(function, types, ("x", "w")).program
    setting = Setting(
        program=program, target=resolve_target("trn2"), call_index=np.uint32(7)
    )
    sides = setting.side("float32", policy), setting.emulated(policy)
    [ours] = ParallelWalk(*sides, lambda *heard: None).run([x, w])
    [run] = jit(function, policy=policy).with_rounding_seed(7)(x, w)
    assert np.asarray(ours).tobytes() == np.asarray(run).tobytes()


def test_outliers_are_of_their_kind():
    rules = (Rule(scope="second", auto_cast_type="fp8_e4m3"),)

    def function(x, w):
        for _ in range(3):
            x = x @ w
        with jax.named_scope("second"):
            return x @ w

    policy = Policy(auto_cast="matmult", rules=rules)
    comparison = compare(function, policy=policy, reference="float32")(
        normal(*SIZE), normal(*SIZE)
    )
    assert [r.module for r in comparison.outliers()] == ["second"]
    assert "outlier of its kind: op 3, dot_general, second, " in str(comparison)


def test_the_command(tmp_path):
    path = tmp_path / "steps.py"
    path.write_text("def square(x):\n    return x @ x\n")
    shapes = ["--args", "f32[8,8]", "--policy", "bf16"]
    command = ["compare", f"{path}:square", *shapes]
    plain = CliRunner().invoke(app, command)
    assert plain.exit_code == 0
    assert "dot_general" in plain.output
    found = CliRunner().invoke(app, [*command, "--json", "--tolerance", "1e-6"])
    assert found.exit_code == 1
    assert json.loads(found.output)["first_divergence"]["causes"] == [0]


@pytest.mark.slow
def test_delayed_scaling_reads_the_history_that_the_function_was_given():
    """FP8 ends at 240: without a history the scale is 1, and all is out of range."""
    policy = Policy(
        auto_cast="matmult",
        auto_cast_type="fp8",
        scaling="delayed",
        amax_history_length=2,
    )
    x, w = 1000 * normal(*SIZE), normal(*SIZE, seed=1)
    step = jit(lambda x, w: x @ w, policy=policy)
    first = compare(step)(x, w)
    assert first.faults[0].kind == "non-finite"
    _, history = step.with_amax_history(step.init_amax_history(x, w))(x, w)
    second = compare(step.with_amax_history(history))(x, w)
    assert not second.faults
    out, _ = step.with_amax_history(history)(x, w)
    bounds = tolerance(step.with_amax_history(history))(x, w)
    assert bounds.allows(out)
    assert not bounds.allows(1.2 * out)
    with pytest.raises(InvalidProgramError, match="amax history has shape"):
        compare(step.with_amax_history(history[:, :1]))(x, w)


def test_rules_and_scopes_are_the_policys_and_not_the_references():
    rules = (Rule(scope="second", auto_cast="none"),)
    policy = Policy(auto_cast="matmult", rules=rules)
    comparison = compare(two_layers, policy=policy)(normal(*SIZE), normal(*SIZE))
    first, second = by_op(comparison, "dot_general")
    assert first.isolation.relative_l2 > 1e-4 > second.isolation.relative_l2


def test_a_policy_scope_is_the_policys_and_not_the_references():
    inner = jit(lambda x, w: x @ w, policy="bf16")
    function = lambda x, w: inner(x, w) @ w  # noqa: E731
    comparison = compare(function, policy="fp32")(normal(*SIZE), normal(*SIZE))
    first, second = by_op(comparison, "dot_general")
    assert first.isolation.relative_l2 > 1e-4 > second.isolation.relative_l2


def test_the_reference_divides_exactly_and_keeps_the_programs_casts():
    x = jnp.arange(41, 41 * 12, 41)
    policy = Policy(integer_division="reciprocal")
    [divide] = by_op(compare(lambda x: jax.lax.div(x, 41), policy=policy)(x), "divide")
    assert divide.accumulation.relative_l2 > 0.05
    cast = lambda x: x.astype(jnp.bfloat16).astype(jnp.float32)  # noqa: E731
    folded = compare(cast, policy=Policy(round_trips="folded"), reference="float32")
    assert folded(normal(*SIZE)).ops[-1].accumulation.relative_l2 > 1e-4


def test_unknown_words():
    with pytest.raises(InvalidProgramError, match="float16"):
        compare(two_layers, reference="float16")
    comparison = compare(jnp.sin)(normal(4))
    with pytest.raises(InvalidProgramError, match="sort"):
        comparison.table(sort="size")


@pytest.mark.slow
def test_complex_numbers():
    comparison = compare(lambda x: jnp.abs(x * (1 + 2j)))(normal(4))
    assert comparison.first_divergence is None


@pytest.mark.slow
def test_keys():
    key = jax.random.key(0)
    comparison = compare(lambda k: jax.random.normal(k, (4,)))(key)
    assert comparison.first_divergence is None


def test_a_result_prints_in_80_columns_and_as_html():
    comparison = compare(two_layers, policy="bf16")(normal(*SIZE), normal(*SIZE))
    text = str(comparison)
    assert max(map(len, text.splitlines())) <= 80
    assert "dot_general" in text
    assert "<table" in comparison._repr_html_()
    assert json.dumps(comparison.to_json_dict())
    assert comparison.records[0]["op"] == comparison.ops[0].op
    for sort in ("accumulation", "order"):
        assert comparison.table(sort).row_count


@pytest.mark.slow
def test_tables_name_the_part_and_the_pass():
    """And leave the units in the last place of a sound BF16 matmul, millions of those
    of FP32, to the records."""

    def loss(params, x):
        with jax.named_scope("layers/0/attention/key_projection"):
            return jnp.sum(jnp.tanh(x @ params) ** 2)

    rng = np.random.default_rng(0)
    params, x = (rng.normal(size=s).astype(np.float32) for s in ((16, 8), (4, 16)))
    report = compare(jax.value_and_grad(loss), policy="bf16")(params, x)
    assert "key_projection fwd" in str(report)
    assert "key_projection bwd" in str(report)
    assert "ulp" not in str(report)
    assert max(r["isolation_max_ulp"] for r in report.records) > 1000


def test_what_is_said_of_a_result_is_indented():
    def wrong(x):
        mean = (x * x).mean(-1) - x.mean(-1) ** 2
        return {"a_name_that_is_longer_than_its_place": {"variances": mean}}

    x = np.random.default_rng(0).normal(size=(4, 512)).astype(np.float32) + 1000
    lines = str(compare(wrong, policy="fp32")(x)).splitlines()
    start = lines.index("the result is wrong") + 1
    end = next(n for n, line in enumerate(lines) if line.startswith("1. "))
    assert end > start
    assert all(line.startswith("   ") for line in lines[start:end])


def test_a_plot_has_both_errors():
    comparison = compare(two_layers, policy="bf16")(normal(*SIZE), normal(*SIZE))
    figure = comparison.plot()
    labels = {t.get_text() for t in figure.legends[0].get_texts()}
    assert {"in the run (own and inherited)", "in isolation (own only)"} <= labels


def test_a_saved_program(tmp_path):
    x = normal(4, 4)
    path = tmp_path / "dot.mlir"
    path.write_text(jit(lambda x: x @ x).lower(x).as_text())
    comparison = compare(path, policy="bf16")(x)
    assert by_op(comparison, "dot_general")[0].isolation.differing


@pytest.mark.slow
def test_values_are_freed_after_their_last_use(monkeypatch):
    """A chain of 30 large values never holds more than a few of them."""
    from neuronjax.diagnostics import op_walk

    most = 0
    original = op_walk.ParallelWalk._op

    def counted(self, *args):
        nonlocal most
        entries = [x for lane in self._lanes for x in lane.arrays.values()]
        held = [
            y
            for x in entries
            for y in (vars(x).values() if isinstance(x, Fed) else [x])
            if hasattr(y, "size")
        ]
        arrays = {id(a): a for a in held}
        most = max(most, sum(a.size > 1000 for a in arrays.values()))
        original(self, *args)

    monkeypatch.setattr(op_walk.ParallelWalk, "_op", counted)

    def function(x):
        for _ in range(30):
            x = jnp.tanh(x) * 1.01
        return x

    compare(function, policy=Policy(auto_cast="all"), explain=False)(normal(2000))
    assert most <= 10


@pytest.mark.slow
def test_what_is_shown_again_has_the_errors_of_what_it_shows():
    """Reshaped, transposed and broadcast: measured once, and fed on in isolation."""

    def function(x):
        y = jnp.tanh(x * 3)
        z = jnp.broadcast_to(y.reshape(4, 2).T[:, :, None], (2, 4, 3))
        return z + jnp.float32(1)

    comparison = compare(function, policy="bf16")(normal(8))
    [tanh], [total] = by_op(comparison, "tanh"), by_op(comparison, "add")
    for name in ("reshape", "transpose"):
        [moved] = by_op(comparison, name)
        assert moved.accumulation == tanh.accumulation
        assert moved.isolation.sum_error2 == 0
    broadcasts = [r.accumulation for r in by_op(comparison, "broadcast_in_dim")]
    [shown] = [e for e in broadcasts if e.elements == 24 and e.max_ulp]
    assert shown.max_ulp == tanh.accumulation.max_ulp
    assert shown.relative_l2 == pytest.approx(tanh.accumulation.relative_l2)
    assert 0 < total.isolation.relative_l2 < 1e-7


def test_the_errors_of_results_are_those_of_numpy_in_float64():
    x, w = (np.asarray(normal(8, 16, seed=n).reshape(s)) for n, s in enumerate(SHAPES))

    def step(x, w):
        return {"product": x @ w, "count": jnp.int32(3)}

    comparison = compare(step, policy="bf16")(x, w)
    found = comparison.summary()
    emulated = np.asarray(jit(step, policy="bf16")(x, w)["product"], np.float64)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    error = np.abs(emulated - exact) / np.sqrt(np.mean(exact**2))
    assert found["results/product/rel_l2"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert found["results/product/p99"] == pytest.approx(np.percentile(error, 99))
    assert found["results/product/max"] == found["max"] == pytest.approx(error.max())
    assert 1e-4 < found["rel_l2"] < 1e-2  # the casts count
    assert (found["policy"], found["faults"]) == ("bf16", 0)
    assert found["results/count/max"] == 0.0
    assert all(isinstance(value, str | int | float) for value in found.values())


SHAPES = (8, 16), (16, 8)


def test_faults_are_counted_by_their_kind():
    found = compare(lambda x: jnp.exp(x), policy="fp32")(np.full(8, 200, np.float32))
    summary = found.summary()
    kinds = {key: n for key, n in summary.items() if key.startswith("faults/")}
    assert summary["faults"] == len(found.faults) == sum(kinds.values()) > 0
