"""Programs of `tests/strangers` over libraries that install quickly: one of each.

They are in the extra `test`; all others have `make strangers`.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.strangers import (
    language_models,
    networks,
    ppo,
    probability,
    solvers,
    training,
    worlds,
)
from tests.strangers.program import FAILURES, FLOOR, Program, compare, judge, of

#: What `make test` runs, a few seconds each on two cores.
QUICK = (
    language_models.qwen3_prefill,
    networks.equinox_mlp,
    networks.haiku_mlp,
    networks.jraph_attention,
    probability.numpyro_density,
    solvers.jaxopt_simplex,
    solvers.lineax_cholesky,
    training.chex_asserts,
    training.flashbax_buffer,
    training.jaxtyping_annotations,
    training.rax_ranking,
    worlds.pix_augmentations,
)
SLOW = (
    language_models.mamba2_decoding,
    networks.e3nn_gate,
    networks.penzai_named_axes,
    ppo.ppo,
    probability.blackjax_mala,
    probability.mctx_gumbel,
    probability.tinygp_likelihood,
    solvers.diffrax_adaptive,
    solvers.optimistix_newton,
)


@pytest.mark.slow_cases(
    "equinox_mlp",
    "flashbax_buffer",
    "haiku_mlp",
    "jaxopt_simplex",
    "qwen3_prefill",
    "rax_ranking",
    "pix_augmentations",
    "numpyro_density",
    "lineax_cholesky",
    "jraph_attention",
)
@pytest.mark.parametrize(
    "program",
    [
        *[pytest.param(of(build), id=build.__name__) for build in QUICK],
        *[
            pytest.param(of(build), id=build.__name__, marks=pytest.mark.slow)
            for build in SLOW
        ],
    ],
)
def test_a_program_agrees_with_jax(program: Program):
    verdict = judge(program)
    assert verdict.word == "agrees", f"{program.library}: {verdict}"


# -- the judge -------------------------------------------------------------------------


def test_what_is_off_by_more_than_its_bound_differs():
    expected = np.float32([1.0, 2.0, 3.0])
    near, far = expected * np.float32(1 + FLOOR / 4), expected * np.float32(1.001)
    assert compare(near, expected, expected).word == "agrees"
    assert compare(far, expected, expected).word == "differs"
    # A result that the last places of the arguments move by as much may be so far off.
    assert compare(far, expected, far).word == "agrees"


def test_integers_and_nans_are_no_rounding():
    whole, other = np.int32([1, 2]), np.int32([1, 3])
    assert compare(whole, whole, whole).word == "agrees"
    assert compare(other, whole, whole).word == "differs"
    number, broken = np.float32([1, 2]), np.float32([1, np.nan])
    assert compare(broken, number, number).word == "differs"
    assert compare(number, [number], [number]).word == "differs"
    assert "differs" in FAILURES
