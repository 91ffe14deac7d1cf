"""Every report says on what machine and by what numbers, in the same words."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import neuronjax as nj

X = jnp.ones((4, 4))
BF16 = "trn2, LNC 2, policy bf16 (matmuls in BF16), SDK 2.32"
DEFAULT = "trn2, LNC 2, policy fp32 (FP32 in four passes), SDK 2.32"


def square(x):
    return (x @ x).sum()


def train(jit, seed):
    yield float(jit(square)(X)) + seed


REPORTS = {
    "lower": lambda policy: nj.jit(square, policy=policy).lower(X),
    "profile": lambda policy: nj.profile(square, policy=policy)(X),
    "compare": lambda policy: nj.compare(square, policy=policy)(X),
    "against": lambda policy: nj.compare(square, against=jnp.sum, policy=policy)(X),
    "check": lambda policy: nj.check(square, policy=policy)(X),
    "tolerance": lambda policy: nj.tolerance(square, policy=policy)(X),
    "collect": lambda policy: nj.jit(square, policy=policy, collect=True)(X)[1],
    "study": lambda policy: nj.study(train, policies=["native", policy], seeds=1),
}


@pytest.mark.slow_cases("collect")
@pytest.mark.parametrize("name", REPORTS)
def test_the_setting_is_said(name):
    text = " ".join(str(REPORTS[name]("bf16")).split())
    assert BF16 in text


@pytest.mark.slow
def test_the_defaults_have_a_name():
    for name in ("check", "collect", "profile"):
        assert DEFAULT in " ".join(str(REPORTS[name](None)).split())


def test_the_sdk_is_that_of_the_question():
    report = nj.check(square, sdk="2.20")(X)
    assert "SDK 2.20" in str(report)
    assert report.setting.endswith("SDK 2.20")
