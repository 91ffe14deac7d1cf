"""Draw the pictures of README and docs: `PYTHONPATH=. python docs/figures.py`.

`neuronjax quickstart --output docs/images/loss_curves.png` draws the curves of README.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import data_flow
import jax
import jax.numpy as jnp
import optax

import neuronjax as nj
from examples import gpt as model

IMAGES = Path(__file__).parent / "images"


def train_step() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A GPT's step under Adam, and the types of its arguments: 124 million parameters,
    8 sequences of 1,024 tokens."""
    config = model.GPTConfig(
        vocab_size=50304, layers=12, heads=12, width=768, hidden=3072
    )
    optimizer = optax.adam(3e-4)

    def create() -> tuple[Any, Any]:
        graphdef, params = model.create(config)
        created.append(graphdef)
        return params, optimizer.init(params)

    created: list = []
    params, state = jax.eval_shape(create)
    graphdef = created[0]

    def step(params: Any, state: Any, tokens: Any) -> tuple[Any, Any, Any]:
        value, grads = jax.value_and_grad(lambda p: model.loss(graphdef, p, tokens))(
            params
        )
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    return step, (params, state, jax.ShapeDtypeStruct((8, 1025), jnp.int32))


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    data_flow.PICTURE.write_text(data_flow.draw(), encoding="utf-8")
    step, types = train_step()
    profile = nj.profile(step, target="trn2", policy="bf16")(*types)
    print(profile)
    for what in ("timeline", "roofline", "memory"):
        figure = profile.plot(what)
        figure.savefig(IMAGES / f"{what}.png", dpi=120)


if __name__ == "__main__":
    main()
