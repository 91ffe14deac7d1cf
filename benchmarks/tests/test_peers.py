"""The comparison itself: missing peers, small comparisons, verdicts on hashes."""

from __future__ import annotations

import importlib.util
import json

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import regression
from benchmarks.harness import Effort
from benchmarks.peers import abilities, blocks, casts, contest, interpreter, pruning

ONCE = Effort(repetitions=1, seconds=0.0, minimum=1)


def test_an_absent_peer_is_skipped_with_a_word(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    def never():
        raise AssertionError("an absent peer was imported")

    entry = contest.against(
        "cast",
        "torch",
        needs="torch",
        pair=never,
        numerics=never,
        effort=ONCE,
        sizes={},
    )
    assert entry["status"] == "skipped"
    assert entry["why"] == "torch is not installed"


def test_every_task_does_without_peers(monkeypatch):
    """Check that with nothing installed beside JAX, JAX alone is compared."""
    monkeypatch.setattr(
        contest, "absent", lambda module: f"no {module}" if module else ""
    )
    monkeypatch.setattr(pruning, "PATTERNS", ((2, 4),))
    found = list(pruning.entries(ONCE, quick=True))
    assert [e["status"] for e in found] == ["measured", "skipped", "skipped"]
    assert found[0]["numerics"] == {"compared": 512 * 512, "differ": 0}
    assert json.loads(json.dumps(found)) == found


def test_casts_are_held_against_ours():
    found = casts.numerics("float8_e4m3fn", casts._ml_dtypes, casts.FEW)
    assert found["compared"] > 30_000
    assert found["differ"] == found["differ_special"] == 0
    assert found["special"] == found["ours_special"]


def test_a_wrong_cast_is_counted():
    def truncated(name, x):
        bits = x.view(np.uint32) & np.uint32(0xFFFF0000)
        return lambda: bits.view(np.float32).astype(jnp.bfloat16)

    found = casts.numerics("bfloat16", truncated, casts.FEW)
    assert found["differ"] == found["differ_subnormal_inputs"]  # BF16 patterns alone
    x = np.array([1.00390625 + 2.0**-10], np.float32)  # above a tie: one code apart
    codes = [casts.as_codes(f("bfloat16", x)(), "bfloat16") for f in (casts._ours,
             truncated)]  # fmt: skip
    assert codes[0] - codes[1] == 1


def test_the_scale_rule_of_a_peer_is_found():
    x = blocks.matrix(2**13)
    found = blocks.numerics("mxfp4_e2m1", lambda n, x: blocks._ours(n, x, "even"), x)
    assert (found["scale_rule"], found["differ"]) == ("even", 0)
    assert found["differ_by_rule"]["ocp_floor"] > 0
    assert found["block_with_inf"] == "nan"


def test_the_interpreter_evaluates_scalars_and_matrices():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    run = interpreter.evaluator(
        lambda x, s: (jnp.square(x @ x.T) + s, s * 2), x, np.float32(0.5)
    )
    product, scalar = run()
    np.testing.assert_array_equal(product, (x @ x.T) ** 2 + 0.5)
    assert scalar.shape == ()
    assert scalar == 1.0


def test_every_peer_answers_every_question():
    rows = abilities.ABILITIES.values()
    assert {len(row) for row in rows} == {len(abilities.QUESTIONS)}


@pytest.mark.parametrize(
    ("bits", "program", "said"),
    [
        ("a", "p", "equal"),
        ("b", "p", "DIFFERS"),
        ("b", "q", "other program"),
        ("a", "q", "equal"),
    ],
)
def test_verdicts_of_pinned_bits(bits, program, said):
    pinned = {"bits": "a", "program": "p"}
    assert regression.verdict({"bits": bits, "program": program}, pinned) == said
    assert regression.verdict({"bits": bits, "program": program}, None) == "not pinned"


def test_nothing_is_pinned_that_is_not_run():
    names = {
        f"{program}:{policy}:{target}"
        for program, cases in regression.CASES.items()
        for policy, target in cases
    }
    assert set(regression.pinned()) <= names
