"""The quickstart's GPT as whole train steps: optimizers, remat, scan, dropout, bf16.

The vocabulary of 133 makes the gradient of the tied head contract over more than one
tile of 128 rows, and over no multiple of 16.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import optax
from flax import nnx

from examples import gpt as model
from tests.zoo.program import (
    Function,
    Program,
    PyTree,
    Size,
    integers,
    parameters,
    train_step,
    warm_state,
)

_SIZES: dict[Size, dict[str, int]] = {
    "tiny": {"vocab_size": 133, "layers": 2, "heads": 2, "width": 16, "hidden": 40},
    "small": {"vocab_size": 261, "layers": 3, "heads": 4, "width": 64, "hidden": 168},
}
_TOKENS: dict[Size, tuple[int, int]] = {"tiny": (2, 9), "small": (4, 33)}


def _model(seed: int, size: Size, **switches: Any) -> tuple[nnx.GraphDef, PyTree]:
    config = model.GPTConfig(**_SIZES[size], **switches)
    shapes = nnx.eval_shape(lambda: model.GPT(config, nnx.Rngs(0)))
    graphdef, params = nnx.split(shapes)
    return graphdef, parameters(params, seed)


def _tokens(seed: int, size: Size) -> jax.Array:
    return integers(seed, _TOKENS[size], _SIZES[size]["vocab_size"])


def _train(
    optimizer: optax.GradientTransformation,
    switches: dict[str, Any],
    seed: int,
    size: Size = "tiny",
) -> tuple[Function, tuple[PyTree, ...]]:
    graphdef, params = _model(seed, size, **switches)

    def loss(params: PyTree, tokens: jax.Array) -> tuple[jax.Array, PyTree]:
        return model.loss(graphdef, params, tokens), ()

    return train_step(loss, optimizer), (
        params,
        warm_state(optimizer, params, seed),
        _tokens(seed, size),
    )


def _train_with_dropout(
    implementation: str, seed: int, size: Size = "tiny"
) -> tuple[Function, tuple[PyTree, ...]]:
    """The last argument is the raw uint32 data of a key of `implementation`."""
    graphdef, params = _model(seed, size, dropout=0.1)
    optimizer = optax.adam(1e-3)

    def loss(
        params: PyTree, tokens: jax.Array, data: jax.Array
    ) -> tuple[jax.Array, PyTree]:
        key = jax.random.wrap_key_data(data, impl=implementation)
        return model.loss(graphdef, params, tokens, key), ()

    data = jax.random.key_data(jax.random.key(seed, impl=implementation))
    return train_step(loss, optimizer), (
        params,
        warm_state(optimizer, params, seed),
        _tokens(seed, size),
        data,
    )


def _forward(
    switches: dict[str, Any], seed: int, size: Size = "tiny"
) -> tuple[Function, tuple[PyTree, ...]]:
    graphdef, params = _model(seed, size, **switches)
    return functools.partial(model.logits, graphdef), (params, _tokens(seed, size))


def _adamw() -> optax.GradientTransformation:
    """AdamW as language models are trained: clipped, warmed up, cosine decay."""
    rate = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 2, 10)
    return optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=0.1)
    )


_VARIANTS: dict[str, tuple[optax.GradientTransformation, dict[str, Any]]] = {
    "gpt_adam": (optax.adam(1e-3), {}),
    "gpt_adamw_clip_cosine": (_adamw(), {}),
    "gpt_remat": (optax.adam(1e-3), {"remat": True}),
    "gpt_scan": (optax.adam(1e-3), {"scan_layers": True}),
    "gpt_scan_remat": (_adamw(), {"scan_layers": True, "remat": True}),
    "gpt_bf16": (_adamw(), {"dtype": "bfloat16"}),
}

PROGRAMS = (
    *(
        Program(name=name, make=functools.partial(_train, *variant))
        for name, variant in _VARIANTS.items()
    ),
    *(
        Program(
            name=f"gpt_dropout_{implementation}",
            make=functools.partial(_train_with_dropout, implementation),
        )
        for implementation in ("threefry2x32", "rbg")
    ),
    Program(
        name="gpt_forward", make=functools.partial(_forward, {}), batch_argnums=(1,)
    ),
    Program(
        name="gpt_scan_forward",
        make=functools.partial(_forward, {"scan_layers": True}),
        batch_argnums=(1,),
    ),
)
