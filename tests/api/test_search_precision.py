"""`search_precision`: a sensitive layer stays high; what is claimed was measured."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import neuronjax as nj
from neuronjax.cli.asking import search as search_command
from neuronjax.diagnostics.precision_batches import VARIATION, JudgedBatches
from neuronjax.diagnostics.precision_groups import HeardOp, find_groups
from neuronjax.diagnostics.precision_metrics import measured, on_host
from neuronjax.diagnostics.precision_policies import Candidates, policy_code
from neuronjax.diagnostics.precision_result import Tried

WIDTH = 32
CANDIDATES = ("fp8", "bf16", "fp32")
STRATEGIES = ("greedy", "bisection")


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def layers(params, x):
    """Rows that are nearly alike go through "hot", and their mean is taken off."""
    hot = x @ params["hot"]
    apart = 250 * (hot - jnp.mean(hot, axis=0, keepdims=True))
    return jnp.tanh(apart @ params["second"]) @ params["last"]


NAMES = ("hot", "second", "last")


@pytest.fixture(scope="module")
def arguments():
    weights = {name: normal(i, WIDTH, WIDTH) / 6 for i, name in enumerate(NAMES)}
    return weights, normal(3, WIDTH) + 0.004 * normal(4, 8, WIDTH)


#: What is searched for in so small a function that casts cost more than they save, on
#: one batch that is all there is.
ALONE = dict(objective="preference", margin=1.0, variations=0)


def search(function=layers, **options):
    options = {"tolerance": 0.1, "candidates": CANDIDATES, **ALONE, **options}
    return nj.search_precision(function, progress=False, **options)


def relative_l2(actual, reference):
    a, r = (np.asarray(x, np.float64) for x in (actual, reference))
    return np.linalg.norm(a - r) / np.linalg.norm(r)


# -- what is found ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sensitive_layer_stays_high(arguments, strategy):
    found = search(strategy=strategy)(*arguments)
    assert found.precisions == {
        "params/hot": "fp32",
        "params/second": "fp8",
        "params/last": "fp8",
    }
    # What is said of it is so: run by nj.jit as a whole, priced by nj.profile.
    ours = nj.jit(layers, policy=found.policy)(*arguments)
    with jax.disable_jit():
        reference = nj.jit(layers, policy="fp32")(*arguments)
    assert found.error == pytest.approx(relative_l2(ours, reference), rel=1e-12)
    assert 0 < found.error <= found.tolerance
    for policy, seconds in (
        (found.policy, found.seconds),
        ("fp32", found.baseline_seconds),
    ):
        predicted = nj.profile(layers, policy=policy)(*arguments)
        assert predicted.total_seconds == seconds
    refused = [r for r in found.records if r["groups"] == "params/hot" and r["error"]]
    assert refused
    assert all(r["error"] > found.tolerance for r in refused)


def saturating(params, x):
    """One weight lies beyond every FP8 format: unscaled, it becomes Inf or NaN."""
    return jnp.tanh(x @ params["small"]) @ params["large"] * 1e-6


@pytest.mark.slow_cases("greedy")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_weight_out_of_range_stays_high(strategy):
    unscaled = nj.Policy(auto_cast="matmult", auto_cast_type="fp8", name="unscaled")
    params = {
        "small": normal(0, WIDTH, WIDTH),
        "large": 1e6 * normal(1, WIDTH, WIDTH),
    }
    found = search(
        saturating, candidates=(unscaled, "bf16"), strategy=strategy, reference="bf16"
    )(params, normal(2, 8, WIDTH))
    assert found.precisions == {"params/small": "unscaled", "params/large": "bf16"}
    alone = [r for r in found.records if r["groups"] == "params/large"]
    assert alone[0]["error"] == math.inf
    assert alone[0]["outcome"] == "rejected"


@pytest.fixture(scope="module")
def errors(arguments):
    """Of every assignment there is, by policies and runs of its own."""
    rules = {
        "fp8": dict(auto_cast="matmult", auto_cast_type="fp8", scaling="current"),
        "bf16": dict(auto_cast="matmult", auto_cast_type="bf16", scaling="none"),
        "fp32": dict(auto_cast="none"),
    }
    with jax.disable_jit():
        reference = nj.jit(layers, policy="fp32")(*arguments)
    found = {}
    for chosen in itertools.product(CANDIDATES, repeat=3):
        pairs = zip(NAMES, chosen, strict=True)
        policy = nj.Policy(
            rules=tuple(nj.Rule(param=f"params/{n}", **rules[c]) for n, c in pairs)
        )
        with jax.disable_jit():
            ours = nj.jit(layers, policy=policy)(*arguments)
        found[chosen] = relative_l2(ours, reference)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [0.003, 0.02, 0.06, 0.3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_against_every_assignment_there_is(arguments, errors, tolerance, strategy):
    """Feasible, and at most one candidate of one group above the best there is."""
    cost = lambda chosen: sum(map(CANDIDATES.index, chosen))  # noqa: E731
    best = min(cost(c) for c, error in errors.items() if error <= tolerance)
    found = search(tolerance=tolerance, strategy=strategy)(*arguments)
    chosen = tuple(found.precisions[f"params/{name}"] for name in NAMES)
    assert found.error == pytest.approx(errors[chosen], rel=1e-12, abs=1e-15)
    assert found.error <= tolerance
    assert cost(chosen) <= best + 1


@pytest.mark.slow
def test_a_search_for_time_never_loses_any(arguments):
    found = search(objective="time")(*arguments)
    kept = [r["seconds"] for r in found.records if r["outcome"] == "kept"]
    assert kept == sorted(kept, reverse=True)
    assert found.speedup >= 1
    assert any(r["why"] == "saves no time" for r in found.records)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("tolerance", [0.003, 0.3])
def test_by_default_nothing_slower_is_found(arguments, strategy, tolerance):
    found = nj.search_precision(
        layers, tolerance=tolerance, strategy=strategy, progress=False
    )(*arguments)
    assert found.seconds <= found.baseline_seconds
    predicted = nj.profile(layers, policy=found.policy)(*arguments).total_seconds
    assert predicted == found.seconds
    assert "Step by step, from the baseline" in str(found)
    assert found.held_out == 4
    assert found.held_out_varied


def matmul(w, x):
    return x @ w


def whole_numbers(seed, *shape):
    """Exact in FP8."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


@pytest.mark.slow
def test_what_was_held_out_undoes_what_fits_one_batch():
    """The batch that is seen has no error at all in FP8; the one held out has."""
    w, x = whole_numbers(0, WIDTH, WIDTH), whole_numbers(1, 8, WIDTH)
    fresh = np.asarray(normal(2, 8, WIDTH))
    alone = search(matmul, tolerance=0.01)(w, x)
    assert (alone.precisions, alone.error) == ({"w": "fp8"}, 0)
    assert alone.held_out_error is None
    assert "errors on other data may be larger" in str(alone)
    found = search(matmul, tolerance=0.01, holdout=[(w, fresh), (w, x)])(w, x)
    assert found.precisions == {"w": "bf16"}
    [undone] = [r for r in found.records if r["stage"] == "held out"]
    assert (undone["candidate"], undone["error"]) == ("fp8", 0)
    with jax.disable_jit():
        ours, reference = (
            nj.jit(matmul, policy=p)(w, fresh) for p in (found.policy, "fp32")
        )
    assert found.held_out_error == pytest.approx(relative_l2(ours, reference))
    assert 0 < (found.held_out_error or 0) <= 0.01
    assert "judged on 1 batch with a margin of 1; error on 2 held-out batches" in str(
        found
    )
    assert "errors on other data" not in str(found)


def test_variations_show_luck_in_the_roundings():
    w, x = whole_numbers(0, WIDTH, WIDTH), whole_numbers(1, 8, WIDTH)
    found = search(matmul, tolerance=1e-4, variations=2)(w, x)
    assert found.precisions == {"w": "fp32"}
    undone = [r["candidate"] for r in found.records if r["stage"] == "held out"]
    assert undone[0] == "fp8"
    assert "error on 2 variations of it" in str(found)


def test_variations_move_floats_alone():
    first = (({"w": jnp.ones(64, jnp.bfloat16)}, np.arange(4)), {"scale": np.ones(3)})
    judged = JudgedBatches.of(first, [], [], 3)
    assert (len(judged.seen), len(judged.held_out), judged.varied) == (1, 3, True)
    for (params, tokens), keywords in judged.held_out:
        assert params["w"].dtype == jnp.bfloat16
        shift = np.abs(np.asarray(params["w"], np.float64) - 1)
        assert 0 < shift.max() <= VARIATION
        assert 0 < np.abs(keywords["scale"] - 1).max() <= VARIATION
        assert np.array_equal(tokens, np.arange(4))
    assert JudgedBatches.of(((np.arange(4),), {}), [], [], 3).held_out == ()
    given = JudgedBatches.of(first, [(1,)], [(2,)], 3)
    assert [b[0] for b in given.seen[1:] + given.held_out] == [(1,), (2,)]
    assert not given.varied


def test_a_margin_is_kept(arguments):
    whole, careful = (search(margin=m)(*arguments) for m in (1.0, 3.0))
    assert whole.error <= 0.1
    assert careful.error * 3 <= 0.1
    assert careful.margin == 3


def test_a_refusal_says_what_decided(arguments):
    text = str(search(margin=3.0)(*arguments))
    assert re.search(r"error [\d.e-]+ x 3 > 0.1", text)
    assert "Tolerated: error x 3 <= 0.1" in text
    for error in re.findall(r"error ([\d.e-]+) x 3 > 0.1", text):
        assert float(error) * 3 > 0.1 - 1e-3  # three digits
    assert re.search(r"error [\d.e-]+ > 0.1", str(search()(*arguments)))


def test_what_saves_no_time_is_not_refused_for_its_error(arguments):
    text = str(search(objective="time", tolerance=10.0)(*arguments))
    assert re.search(r"time [\d.]+ .s >= [\d.]+ .s", text)
    assert not re.search(r"error [\d.e-]+ >", text)


def test_a_uniform_policy_that_is_better_is_named(arguments):
    found = search()(*arguments)
    low, baseline = ((n,) * len(found.groups) for n in (0, len(found.candidates) - 1))

    def said(assignment, seconds, error):
        tried = Tried(
            assignment=assignment,
            seconds=seconds * found.seconds,
            error=error * found.error,
        )
        text = str(replace(found, tried=(tried,)))
        return re.findall(r"\w+ for all groups is ([a-z ]+): ", text)

    assert found.error * found.margin * 1.01 <= found.tolerance
    assert said(low, 0.9, 0.5) == ["faster and more exact"]
    assert said(low, 0.9, 1.01) == ["faster"]
    assert said(low, 1.001, 0.5) == ["more exact"]
    assert not said(low, 1.1, 0.5)  # slower
    assert not said(low, 0.9, 99.0)  # beyond the tolerance
    assert not said(baseline, 0.9, 0.0)  # what the search begins with
    assert not said(found.assignment, 1.0, 1.0)


@pytest.mark.slow
def test_a_single_number_is_told():
    def total(w, x):
        return jnp.sum(x @ w)

    found = search(total, tolerance=0.5)(normal(0, 8, 8), normal(1, 4, 8))
    assert found.elements == 1
    assert "the only number that was measured" in str(found)


@pytest.mark.slow
def test_compilations_are_counted():
    def wide(w, x):
        return jnp.tanh(x @ w) @ w

    w, x = normal(0, 24, 24), normal(1, 3, 24)
    first, second = (search(wide)(w, x) for _ in range(2))
    assert first.compilations > second.compilations
    assert f"XLA compiled {first.compilations} ops" in str(first)
    assert first.to_json_dict()["compilations"] == first.compilations


@pytest.mark.slow
def test_it_is_deterministic(arguments):
    one, two = (search(strategy="bisection")(*arguments) for _ in range(2))
    assert one.policy == two.policy
    assert one.records == two.records
    assert one.evaluations == two.evaluations


@pytest.mark.slow
def test_the_budget_is_respected(arguments):
    whole = search()(*arguments)
    assert not whole.budget_spent
    runs = []

    def counted(run, *args):
        runs.append(run)
        return run(*args)

    for most in range(2, whole.evaluations, 2):
        runs.clear()
        found = search(max_evaluations=most, evaluate=counted)(*arguments)
        assert found.evaluations == len(runs) <= most
        assert found.budget_spent
        assert found.error <= found.tolerance


@pytest.mark.slow
def test_a_train_step_over_several_steps_and_batches(arguments):
    """`evaluate` makes two steps; every error is that of the worst batch."""

    def step(weight, x):
        y = x @ weight
        return weight - 1e-3 * (x.T @ y), jnp.sum(y)

    def two_steps(run, weight, x):
        weight, _ = run(weight, x)
        return {"loss": run(weight, x)[1], "weight": weight}

    weight, x = arguments[0]["last"], arguments[1]
    options = dict(groups="op", outputs="loss", candidates=("bf16", "fp32"))
    found = search(step, evaluate=two_steps, batches=[(weight, 2 * x)], **options)(
        weight, x
    )
    assert found.precisions == {"stablehlo.dot_general": "bf16"}
    errors = []
    for batch in (x, 2 * x):
        with jax.disable_jit():
            losses = [
                two_steps(nj.jit(step, policy=policy), weight, batch)["loss"]
                for policy in (found.policy, "fp32")
            ]
        errors.append(relative_l2(*losses))
    assert found.error == pytest.approx(max(errors), rel=1e-12)


# -- groups ----------------------------------------------------------------------------


def op(name, scope="jit(f)/dot_general", source="a.py:1", *params):
    return HeardOp(f"stablehlo.{name}", params, scope, source)


def test_groups_by_scope_hold_both_passes_and_do_not_overlap():
    heard = [
        op("dot_general", "jit(f)/jvp(block)/mlp/dot_general"),
        op("dot_general", "jit(f)/transpose(jvp(block))/mlp/dot_general"),
        op("dot_general", "jit(f)/block/dot_general"),
        op("dot_general", "jit(f)/dot_general"),
    ]
    found = find_groups(heard, "scope")
    assert {g.name: g.ops for g in found.groups} == {
        "(others)": 1,
        "block": 1,
        "block/mlp": 2,
    }
    last = [
        [g.name for g in found.groups if g.selectors and h.matches(g.selectors)][-1:]
        for h in heard
    ]
    assert last == [["block/mlp"], ["block/mlp"], ["block"], []]


def test_groups_by_line_parameter_and_name():
    heard = [
        op("dot_general", "a/dot", "/x/a.py:1", "x", "params/w"),
        op("dot_general", "a/dot", "/x/a.py:11", "x"),
        op("convolution", "a/conv", "/x/a.py:11", "params/w2"),
    ]
    names = lambda by: [g.name for g in find_groups(heard, by).groups]  # noqa: E731
    assert names("source") == ["a.py:1", "a.py:11"]
    assert names("param") == ["x", "params/w", "params/w2"]
    assert names("op") == ["stablehlo.dot_general", "stablehlo.convolution"]
    assert names({"w": {"param": "w"}}) == ["(others)", "w"]
    by_param = find_groups(heard, "param")
    assert by_param.overlap
    bf16_w = Candidates.of(("bf16", "fp32")).policy(by_param, (1, 0, 1))
    assert bf16_w.for_op("dot", params=("x", "params/w")).auto_cast == "matmult"
    assert bf16_w.for_op("dot", params=("x",)).auto_cast == "none"


def test_code_of_a_policy_makes_it_again(arguments):
    found = search()(*arguments)
    again = eval(found.as_code(), {"nj": nj})
    assert again == found.policy
    assert policy_code(nj.Policy()) == "nj.Policy()"


@pytest.mark.slow
def test_the_array_that_errs_most_is_named(arguments):
    def both(params, x):
        return {"rough": layers(params, x), "fine": x.sum()}

    found = search(both)(*arguments)
    refused = [d for d in found.decisions if d.outcome == "rejected"]
    assert refused
    assert set(found.worst_where) == {"rough"}
    assert sum(found.worst_where.values()) <= len(refused)
    assert "programs with too large an error" in str(found)
    assert "largest error in rough; outputs= selects outputs" in str(found)
    alone = search(both, outputs="fine")(*arguments)
    assert "rough" not in str(alone)
    own = search(both, metric=lambda r, a: relative_l2(a["rough"], r["rough"]))
    assert "outputs= selects" not in str(own(*arguments))


# -- metrics ---------------------------------------------------------------------------


def test_metrics_by_hand():
    reference = {"a": np.array([3.0, 4.0]), "b": np.array([1 + 1j])}
    actual = {"a": np.array([3.0, 4.5]), "b": np.array([1 + 1j])}
    assert measured("relative_l2", reference, actual).error == pytest.approx(0.1)
    assert measured("max_relative", reference, actual).error == pytest.approx(0.125)
    nan, number = {"a": np.array([math.nan, 1.0])}, {"a": np.array([1.0, 1.0])}
    assert measured("relative_l2", nan, nan).error == 0
    assert measured("relative_l2", number, nan).error == math.inf
    assert measured(lambda r, a: math.nan, number, nan).error == math.inf
    outputs = (jnp.ones(2), {"loss": jnp.float32(1), "key": jax.random.key(0)})
    assert list(on_host(outputs, "loss$")) == ["1/loss"]
    assert len(jax.tree.leaves(on_host(outputs, None))) == 2


# -- errors ----------------------------------------------------------------------------


def rejects(match, function=layers, args=(), error=nj.InvalidProgramError, **options):
    with pytest.raises(error, match=match):
        search(function, **options)(*args)


@pytest.mark.slow
def test_errors_of_the_call(arguments):
    invalid = dict(args=arguments)
    rejects("no op whose precision", lambda p, x: x + 1, **invalid)
    narrow = jax.tree.map(lambda a: a.astype(jnp.bfloat16), arguments)
    rejects("changes an instruction of this program", args=narrow)
    rejects("baseline itself", candidates=("fp8", "bf16"), tolerance=1e-9, **invalid)
    lacking = dict(error=nj.UnsupportedError, candidates=("mxfp8", "fp32"))
    rejects("candidate 'mxfp8'", target="trn2", **lacking, **invalid)
    rejects("returned nan", metric=lambda r, a: math.nan, **invalid)
    rejects("nothing to measure", outputs="^loss$", **invalid)
    rejects("has no op", groups={"tail": {"param": "nowhere"}}, **invalid)
    rejects("groups is", groups="layer", **invalid)


def test_errors_before_the_call():
    delayed = nj.Policy(
        auto_cast="matmult", auto_cast_type="fp8", scaling="delayed", name="delayed"
    )
    rejects("delayed scaling", error=nj.UnsupportedError, candidates=(delayed, "fp32"))
    rejects("at least", max_evaluations=1)
    rejects("margin is 0.5", margin=0.5)
    rejects("variations is -1", variations=-1)
    rejects("tolerance is", tolerance=math.nan)
    rejects("strategy is", strategy="random")
    rejects("metric is", metric="l1")
    rejects("no regular expression", outputs="(")
    rejects("given twice", candidates=("fp32", "fp32"))
    rejects("1 candidates", candidates=("fp32",))
    rejects("without a name", candidates=(nj.Policy(), "fp32"))
    seeded = nj.Policy(seed=3, name="seeded")
    rejects("Policy.seed, which a rule cannot", candidates=(seeded, "fp32"))


def test_what_the_target_lacks_is_left_out_by_default(arguments):
    found = search(candidates=None, max_evaluations=2)(*arguments)
    assert found.candidates == ("fp8", "bf16", "tf32", "fp32")


# -- shown -----------------------------------------------------------------------------


@pytest.mark.slow
def test_shown_in_80_columns_and_drawn(arguments, tmp_path):
    found = search()(*arguments)
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "params/hot" in text
    assert "<table" in found._repr_html_()
    found.plot().savefig(tmp_path / "search.png")
    assert json.loads(json.dumps(found.to_json_dict()))["precisions"]


def test_command(tmp_path):
    file = tmp_path / "model_of_search.py"
    file.write_text("def f(x, w):\n    return x @ w\n")
    app = typer.Typer()
    app.command()(search_command)
    arguments = [f"{file}:f", "--args", "f32[8,32] f32[32,32]", "--tolerance", "0.02"]
    arguments += ["--candidates", "bf16,fp32", "--objective", "preference"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "nj.Policy(" in result.output
    result = CliRunner().invoke(app, [*arguments, "--groups", "op", "--json"])
    assert json.loads(result.output)["precisions"]["stablehlo.dot_general"] == "bf16"
