"""Every optimizer and gradient transformation of Optax, against native JAX in FP32.

Each takes one step of a small MLP from a state of its own that one native step has
filled: Adam's first step is the sign of the gradient, which hides its low bits. Many
share one program, for the compiler's sake. What Optax has is found by the annotations
of its public functions, so that a new optimizer fails here until it is in the table.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from optax import contrib

import neuronjax as nj
from tests.conformance import bits
from tests.zoo.program import parameters, uniform

RATE = 0.05
#: Largest relative error of a leaf of parameters or state, in the 2-norm. Sums of 9
#: to 12 products are off by some 1e-7 of their terms; differences of moments that are
#: nearly equal keep two or three digits less.
BOUND = 1e-4

Transformation = optax.GradientTransformation

#: Optimizers that need more than a learning rate, or another one.
OPTIONS: Mapping[str, dict[str, Any]] = {
    "adafactor": dict(min_dim_size_to_factor=4),
    "noisy_sgd": dict(key=jax.random.key(1)),
    "dpsgd": dict(l2_norm_clip=0.5, noise_multiplier=0.1, seed=3),
    "lbfgs": dict(learning_rate=None),
    "polyak_sgd": dict(max_learning_rate=1.0),
}

_ADAM = optax.adam(RATE)
#: Arguments of transformations and wrappers.
ARGUMENTS: Mapping[str, tuple[Any, ...]] = {
    "adaptive_grad_clip": (0.01,),
    "add_noise": (0.1, 0.55, 7),
    "clip": (0.01,),
    "clip_by_block_rms": (0.01,),
    "clip_by_global_norm": (0.1,),
    "ema": (0.9,),
    "scale": (-0.3,),
    "scale_by_backtracking_linesearch": (5,),
    "scale_by_learning_rate": (RATE,),
    "scale_by_schedule": (optax.cosine_decay_schedule(0.1, 10),),
    "scale_by_zoom_linesearch": (5,),
    "trace": (0.9,),
    "apply_if_finite": (_ADAM, 3),
    "chain": (optax.clip(0.1), _ADAM),
    "flatten": (_ADAM,),
    "masked": (_ADAM, {"w1": True, "b1": False, "w2": True, "b2": False}),
    "freeze": ({"w1": True, "b1": False, "w2": True, "b2": False},),
    "multi_transform": (
        {"a": _ADAM, "b": optax.sgd(RATE)},
        {"w1": "a", "b1": "b", "w2": "a", "b2": "b"},
    ),
    "with_extra_args_support": (_ADAM,),
    "sam": (optax.sgd(RATE), contrib.normalize()),
    "mechanize": (_ADAM,),
    "schedule_free": (optax.sgd(RATE), RATE),
    "differentially_private_aggregate": (0.5, 0.1, 3),
    "scale_by_madgrad": (RATE,),
    "scale_by_rprop": (RATE,),
}

#: What no step of a plain dictionary of arrays can show.
ELSEWHERE: Mapping[str, str] = {
    "conditionally_mask": "takes a predicate; cond is tested by itself",
    "conditionally_transform": "takes a predicate; cond is tested by itself",
    "inject_hyperparams": "takes a factory; its state holds Python functions",
    "inject_stateful_hyperparams": "takes a factory; its state holds functions",
    "lookahead": "takes pairs of parameters",
    "measure_with_ema": "takes a user's measure",
    "named_chain": "is chain",
    "partition": "is multi_transform",
    "selective_transform": "is masked",
    "snapshot": "takes a user's measure",
    "stateless": "takes a user's function",
    "stateless_with_tree_map": "takes a user's function",
    "split_real_and_imaginary": "is for complex parameters",
    "scale_by_muon": "is the inside of muon",
    "keep_params_nonnegative": "is for non-negative parameters",
}

#: Those that are fed one gradient per example.
PER_EXAMPLE = {"dpsgd", "differentially_private_aggregate"}

_SEARCH = ("value", "grad", "value_fn")
#: What an update is told besides the gradients; all others take a value or ignore it.
EXTRA: Mapping[str, tuple[str, ...]] = {
    "lbfgs": _SEARCH,
    "scale_by_backtracking_linesearch": _SEARCH,
    "scale_by_zoom_linesearch": _SEARCH,
    "sophia": ("obj_fn",),
    "sam": (),
}


def published(module: types.ModuleType) -> dict[str, Callable[..., Transformation]]:
    """The public functions of a module that return a gradient transformation."""
    return {
        name: function
        for name, function in vars(module).items()
        if isinstance(function, types.FunctionType | functools.partial)
        and not name.startswith("_")
        and "GradientTransformation"
        in str(inspect.signature(function).return_annotation)
    }


def make(name: str) -> Transformation:
    """The transformation of that name, with the arguments of the tables above."""
    function = FOUND[name]
    if name in ARGUMENTS:
        return function(*ARGUMENTS[name])
    accepted = inspect.signature(function).parameters
    rate = {"learning_rate": RATE} if "learning_rate" in accepted else {}
    return function(**{**rate, **OPTIONS.get(name, {})})


FOUND = {**published(optax), **published(contrib)}

#: Gradient transformations that are complete optimizers.
OPTIMIZERS = """
    acprop adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan ademamix
    adopt amsgrad cocob dadapt_adamw dpsgd fromage galore lamb lars lion madgrad momo
    momo_adam muon nadam nadamw noisy_sgd novograd optimistic_adam optimistic_adam_v2
    optimistic_gradient_descent polyak_sgd prodigy radam rmsprop rprop schedule_free
    schedule_free_adamw schedule_free_sgd sgd sign_sgd signum simplified_ademamix sm3
    yogi
""".split()
#: Their parts, and what is put around or before them.
TRANSFORMATIONS = """
    adaptive_grad_clip add_decayed_weights add_noise apply_every apply_if_finite
    centralize chain clip clip_by_block_rms clip_by_global_norm
    differentially_private_aggregate ema flatten freeze identity masked mechanize
    multi_transform normalize normalize_by_update_norm reduce_on_plateau sam scale
    scale_by_acprop scale_by_adadelta scale_by_adam scale_by_adamax scale_by_adan
    scale_by_ademamix scale_by_adopt scale_by_amsgrad scale_by_belief scale_by_cocob
    scale_by_distance_over_gradients scale_by_galore scale_by_lbfgs
    scale_by_learning_rate scale_by_lion scale_by_madgrad 
    scale_by_novograd scale_by_optimistic_gradient scale_by_param_block_norm
    scale_by_param_block_rms scale_by_polyak scale_by_radam scale_by_rms scale_by_rprop
    scale_by_rss scale_by_schedule scale_by_sign scale_by_simplified_ademamix
    scale_by_sm3 scale_by_stddev scale_by_trust_ratio scale_by_yogi set_to_zero trace
    with_extra_args_support zero_nans
""".split()
#: Programs by themselves: loops of their own within the step.
SEARCHES = """
    lbfgs scale_by_backtracking_linesearch scale_by_zoom_linesearch sophia
""".split()
KNOWN = {*OPTIMIZERS, *TRANSFORMATIONS, *SEARCHES, *ELSEWHERE}


# ---- One step of a perceptron.

PARAMS = parameters(
    {
        name: jax.ShapeDtypeStruct(shape, jnp.float32)
        for name, shape in {
            "w1": (9, 12), "b1": (12,), "w2": (12, 4), "b2": (4,),
        }.items()
    },
    seed=1,
)  # fmt: skip
X, Y = uniform(2, (6, 9)), uniform(3, (6, 4))

cheap = {"xla_backend_optimization_level": 0}


def loss(params: Any, x: jax.Array = X, y: jax.Array = Y) -> jax.Array:
    """Mean squared error of a perceptron."""
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.mean(jnp.square(hidden @ params["w2"] + params["b2"] - y))


def step(names: tuple[str, ...], states: Any, params: Any) -> Any:
    """One step of every optimizer by name: {name: (state, params)}."""
    value, grads = jax.value_and_grad(loss)(params)
    each = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(
        params, X[:, None], Y[:, None]
    )
    out = {}
    for name in names:
        optimizer = optax.with_extra_args_support(make(name))
        extra = dict(value=value, grad=grads, value_fn=loss, obj_fn=loss)
        wanted = EXTRA.get(name, ("value",))
        updates, state = optimizer.update(
            each if name in PER_EXAMPLE else grads,
            states[name],
            params,
            **{key: extra[key] for key in wanted},
        )
        out[name] = state, optax.apply_updates(params, updates)
    return out


def close_to_native(names: tuple[str, ...]) -> None:
    """Emulated FP32 is within the bound of native JAX, leaf by leaf."""
    one = functools.partial(step, names)
    native = jax.jit(one, compiler_options=cheap)
    states = {name: make(name).init(PARAMS) for name in names}
    states = {name: state for name, (state, _) in native(states, PARAMS).items()}
    params = jax.tree.map(lambda p: p * 0.9, PARAMS)
    # Galore decomposes its gradients, which no NeuronCore does.
    policy = dataclasses.replace(nj.Policy.preset("fp32"), host_custom_calls=True)
    emulated = nj.jit(one, target="trn2", policy=policy, compiler_options=cheap)
    actual, expected = emulated(states, params), native(states, params)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    errors = bits.relative_errors(actual, expected)
    assert {n: e for n, e in errors.items() if not e < BOUND} == {}


def _groups(names: list[str], size: int) -> list[tuple[str, ...]]:
    """Names in groups; those that an older Optax does not have are left out."""
    names = [name for name in names if name in FOUND]
    return [tuple(names[i : i + size]) for i in range(0, len(names), size)]


def _id(names: tuple[str, ...]) -> str:
    return f"{names[0]} to {names[-1]}"


@pytest.mark.slow
def test_the_optimizers_that_most_use():
    close_to_native(("sgd", "adam", "adamw", "adafactor", "lion", "lamb", "muon"))


@pytest.mark.slow
@pytest.mark.parametrize("names", _groups(OPTIMIZERS, 12), ids=_id)
def test_optimizers(names):
    close_to_native(names)


@pytest.mark.slow
@pytest.mark.parametrize("names", _groups(TRANSFORMATIONS, 12), ids=_id)
def test_transformations(names):
    close_to_native(names)


@pytest.mark.slow
@pytest.mark.parametrize("names", _groups(SEARCHES, 1), ids=_id)
def test_line_searches_and_curvature(names):
    close_to_native(names)


def test_every_optimizer_of_optax_is_in_the_table():
    """A name that is not known here comes from a newer Optax: add it."""
    unknown = sorted(set(FOUND) - KNOWN)
    assert unknown == []
