"""`neuronjax run` on sharded scripts that begin as public runners do."""

from __future__ import annotations

import pytest

from tests.strangers.scripted import SCRIPTS, compare_texts, judge_script

#: Explicit axes and `reshard`; a KV cache under `set_mesh`; `jax.distributed`.
CHOSEN = ("explicit_reshard", "kv_cache", "distributed_guard")


@pytest.mark.parametrize("name", CHOSEN)
def test_a_sharded_script_prints_what_python_prints(name):
    """With the same types and shardings, and numbers that are near."""
    [script] = [script for script in SCRIPTS if script.path.stem == name]
    verdict = judge_script(script)
    assert verdict.word == "agrees", verdict.why


@pytest.mark.parametrize(
    ("actual", "word"),
    [
        ("P('d',) f32[8@d] 1.00001\n", "agrees"),
        ("[Gloo] Rank 3 is connected\nP('d',) f32[8@d] 1.0\n", "agrees"),
        ("P('d',) f32[8@d] 1.01\n", "differs"),
        ("P('d',) f32[4@d] 1.0\n", "differs"),
        ("P() f32[8@d] 1.0\n", "differs"),
        ("P('d',) f32[8@d] 1.0\nmore\n", "differs"),
        ("P('d',) f32[8@d] nan\n", "differs"),
    ],
)
def test_what_counts_as_the_same_text(actual, word):
    assert compare_texts(actual, "P('d',) f32[8@d] 1.0\n").word == word
