"""To which module an argument belongs, by its path."""

from __future__ import annotations

import pytest

from neuronjax.ir.argument_names import modules_of_arguments, parameters_of

KERNEL = "layers/1/attn/wk/kernel/value"


@pytest.mark.parametrize("place", ["model", "state/0", "args[0]/0", "params"])
def test_modules_do_not_depend_on_what_holds_the_model(place):
    names = [f"{place}/{KERNEL}", f"{place}/norm/scale/value", f"{place}/head/bias"]
    found = modules_of_arguments(names)
    assert [*found.values()] == ["layers/1/attn/wk", "norm", "head"]


def test_an_optimizers_state_beside_the_model():
    names = [f"state/0/{KERNEL}", f"state/1/opt_state/0/mu/{KERNEL}"]
    others = ["state/1/step", "state/2/accuracy/total"]
    found = modules_of_arguments([*names, *others])
    assert found == {
        **dict.fromkeys(names, "layers/1/attn/wk"),
        others[1]: "2/accuracy",
    }


def test_places_that_differ_are_layers():
    names = ["layers/0/attn/kernel", "layers/1/attn/kernel"]
    assert [*modules_of_arguments(names).values()] == ["0/attn", "1/attn"]


def test_a_place_among_names_is_a_layer():
    names = ["model/2d_conv/inner/kernel", "model/0/inner/kernel"]
    found = modules_of_arguments(names)
    assert [*found.values()] == ["2d_conv/inner", "0/inner"]


def test_what_an_optimizer_has_moments_of_is_a_parameter():
    params = ["p/layers/down", "p/layers/norm1", "p/out"]
    state = ["s/0/count", *(f"s/0/{m}/{p[2:]}" for m in ("mu", "nu") for p in params)]
    assert parameters_of([*params, *state, "batch/x", "out"]) == params


def test_a_batch_that_shares_a_name_with_a_moment_is_none():
    names = ["latent/x", "opt_state/0/mu/x", "batch/x", "batch/labels"]
    assert parameters_of(names) == ["latent/x"]
