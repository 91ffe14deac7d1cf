"""Policies in words, as the command line and remedies have them."""

import dataclasses

import pytest

from neuronjax.errors import InvalidProgramError
from neuronjax.policy import Policy


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        ("bf16,callbacks=host", {"callbacks": "host"}),
        ("fp8, seed=7 ,rounding=stochastic", {"seed": 7, "rounding": "stochastic"}),
        ("fp32,host_custom_calls=true,loss_scale=1024.0", None),
        ("fp8,scaling=none", {"scaling": "none"}),
    ],
)
def test_words_change_a_preset(words, policy):
    changes = policy or {"host_custom_calls": True, "loss_scale": 1024.0}
    preset = Policy.preset(words.partition(",")[0])
    found = Policy.resolve(words)
    assert found == dataclasses.replace(preset, **changes)
    assert found.name == words


def test_words_change_the_defaults():
    assert Policy.resolve("overflow=saturate") == Policy(overflow="saturate")


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ("bf61,seed=1", "did you mean 'bf16'"),
        ("bf16,sed=1", "did you mean 'seed'"),
        ("bf16,seed", "'seed' changes nothing"),
        ("bf16,", "'' changes nothing"),
        ("bf16,seed=-1", "seed is -1"),
        ("bf16,rounding=up", "rounding is 'up'"),
        ("bf16,rules=1", "field is 'rules'"),
        ("", "preset is ''"),
    ],
)
def test_malformed_policy_words_are_refused(words, match):
    with pytest.raises(InvalidProgramError, match=match):
        Policy.resolve(words)
