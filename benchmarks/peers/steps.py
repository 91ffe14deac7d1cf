"""Whole train steps: forward, backward and Adam.

- A small perceptron in explicit BF16 whose every operation is exactly specified,
  compared with the StableHLO reference interpreter. Numerics: the number of elements of
  the new parameters and optimizer state that differ.
- A GPT in FP8, compared with native FP32 and qwix's quantized training (matmul operands
  e4m3, gradients e5m2).
- A perceptron in MXFP8, compared with an emulation in plain PyTorch.

In the last two, the peers use formats, scales and orders of sums of their own, so the
numerics are the loss of the first step.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import neuronjax as nj
from benchmarks.harness import Effort
from benchmarks.peers.blocks import as_values
from benchmarks.peers.contest import Entry, against
from benchmarks.training import token_ids, train_step
from examples import gpt as model

Thunk = Callable[[], Any]


def _deviates(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape, np.float32) * np.float32(scale)


def _weights(widths: tuple[int, ...]) -> list[np.ndarray]:
    pairs = itertools.pairwise(widths)
    return [_deviates((a, b), i, a**-0.5) for i, (a, b) in enumerate(pairs)]


# ---- Against the interpreter.


def exact_step(widths: tuple[int, ...], batch: int) -> tuple[Any, tuple[Any, ...]]:
    """Return (step, arguments): ReLU, mean square error, Adam, BF16 matmuls."""

    def loss(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        for w in weights[:-1]:
            x = jnp.maximum(_bf16_dot(x, w), 0)
        return jnp.mean(jnp.square(_bf16_dot(x, weights[-1]) - y))

    optimizer = optax.adam(1e-3)
    step = train_step(loss, optimizer)
    weights = [jnp.asarray(w) for w in _weights(widths)]
    data = (_deviates((batch, widths[0]), 90), _deviates((batch, widths[-1]), 91))
    return step, (weights, optimizer.init(weights), *map(jnp.asarray, data))


def _bf16_dot(x: jax.Array, w: jax.Array) -> jax.Array:
    narrow = (x.astype(jnp.bfloat16), w.astype(jnp.bfloat16))
    return jnp.matmul(*narrow, preferred_element_type=jnp.float32)


def _interpreter_entry(effort: Effort, quick: bool) -> Entry:
    widths, batch = ((64, 32, 8), 16) if quick else ((128, 128, 16), 32)
    step, args = exact_step(widths, batch)

    @functools.cache
    def thunks() -> tuple[Thunk, Thunk]:
        from benchmarks.peers.interpreter import evaluator

        emulated = nj.jit(step, target="trn2", policy="fp32")
        return lambda: emulated(*args), evaluator(step, *args)

    def numerics() -> dict[str, Any]:
        ours, theirs = (jax.tree.leaves(thunk()) for thunk in thunks())
        native = jax.tree.leaves(jax.jit(step)(*args))
        return {
            "compared": sum(leaf.size for leaf in ours),
            "differ": _differing(ours, theirs),
            "native_differs": _differing(ours, native),
        }

    return against(
        "train step, MLP in BF16",
        "StableHLO interpreter",
        needs="jaxlib",
        pair=thunks,
        numerics=numerics,
        effort=effort,
        sizes={"widths": widths, "batch": batch},
    )


def _differing(ours: list[Any], theirs: list[Any]) -> int:
    pairs = zip(ours, theirs, strict=True)
    return sum(int((np.asarray(a) != np.asarray(b)).sum()) for a, b in pairs)


# ---- Against qwix.


def gpt_problem(quick: bool) -> tuple[model.GPTConfig, jax.Array]:
    """Return the configuration and tokens of `bench_gpt`, smaller if `quick`."""
    sizes: dict[str, Any] = {"layers": 2, "width": 128, "hidden": 352} if quick else {}
    config = model.GPTConfig(**{"layers": 4, "width": 256, "hidden": 704, **sizes})
    return config, jnp.asarray(token_ids(config, 4 if quick else 8, 128))


def gpt_step(config: model.GPTConfig, prepare: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return (step, (parameters, optimizer state)); `prepare` may replace the model."""
    from flax import nnx

    network = prepare(model.GPT(config, nnx.Rngs(0)))
    graphdef, params, rest = nnx.split(network, nnx.Param, ...)
    optimizer = optax.adam(1e-3)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        logits = nnx.merge(graphdef, params, rest)(tokens[:, :-1])
        each = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return each.mean()

    return train_step(loss, optimizer), (params, optimizer.init(params))


def _qwix_gpt(config: model.GPTConfig, tokens: jax.Array) -> tuple[Any, Any]:
    import qwix

    rule = qwix.QtRule(
        module_path=".*",
        weight_qtype=jnp.float8_e4m3fn,
        act_qtype=jnp.float8_e4m3fn,
        bwd_qtype=jnp.float8_e5m2,
    )

    def prepare(network: Any) -> Any:
        provider = qwix.QtProvider([rule])
        return qwix.quantize_model(network, provider, tokens[:, :-1])

    step, state = gpt_step(config, prepare)
    return jax.jit(step), state


def _native_gpt(config: model.GPTConfig, tokens: jax.Array) -> tuple[Any, Any]:
    del tokens
    step, state = gpt_step(config, lambda network: network)
    return jax.jit(step), state


def _ours_gpt(config: model.GPTConfig, tokens: jax.Array) -> tuple[Any, Any]:
    del tokens
    step, state = gpt_step(config, lambda network: network)
    return nj.jit(step, target="trn2", policy="fp8"), state


def _gpt_entries(effort: Effort, quick: bool) -> Iterator[Entry]:
    config, tokens = gpt_problem(quick)
    for peer, module, build in (
        ("jax.jit in FP32", "", _native_gpt),
        ("qwix, quantized training", "qwix", _qwix_gpt),
    ):

        @functools.cache
        def thunks(build: Any = build) -> tuple[Thunk, Thunk]:
            both = (_ours_gpt(config, tokens), build(config, tokens))
            ours, theirs = (
                functools.partial(step, *state, tokens) for step, state in both
            )
            return ours, theirs

        def numerics(thunks: Any = thunks) -> dict[str, Any]:
            ours, theirs = (float(thunk()[-1]) for thunk in thunks())
            return {"ours_loss": ours, "loss": theirs}

        yield against(
            "train step, GPT in FP8",
            peer,
            needs=module,
            pair=thunks,
            numerics=numerics,
            effort=effort,
            sizes={
                "layers": config.layers,
                "width": config.width,
                "tokens": tokens.shape[1] - 1,
                "batch": tokens.shape[0],
            },
        )


# ---- Against PyTorch.


def _torch_entry(effort: Effort, quick: bool) -> Entry:
    widths, batch = ((256, 256, 32), 64) if quick else ((512, 1024, 1024, 32), 128)
    x, y = _deviates((batch, widths[0]), 90), _deviates((batch, widths[-1]), 91)

    @functools.cache
    def thunks() -> tuple[Thunk, Thunk]:
        return _ours_mx(widths, x, y), _torch_mx(widths, x, y)

    def numerics() -> dict[str, Any]:
        ours, theirs = (float(as_values(thunk())) for thunk in thunks())
        return {"ours_loss": ours, "loss": theirs}

    return against(
        "train step, MLP in MXFP8",
        "torch, plain emulation",
        needs="torch",
        pair=thunks,
        numerics=numerics,
        effort=effort,
        sizes={"widths": widths, "batch": batch},
        caveat="the state is updated in place in PyTorch",
    )


def _ours_mx(widths: tuple[int, ...], x: np.ndarray, y: np.ndarray) -> Thunk:
    optimizer = optax.adam(1e-5)

    def loss(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for w in weights[:-1]:
            x = jnp.maximum(x @ w, 0)
        return jnp.mean(jnp.square(x @ weights[-1] - y))

    step = nj.jit(train_step(loss, optimizer), target="trn3", policy="mxfp8")
    weights = [jnp.asarray(w) for w in _weights(widths)]
    args = (weights, optimizer.init(weights), jnp.asarray(x), jnp.asarray(y))
    return lambda: step(*args)[-1]


def _torch_mx(widths: tuple[int, ...], x: np.ndarray, y: np.ndarray) -> Thunk:
    import torch

    from benchmarks.peers.torch_mx import MXMatmul

    weights = [torch.from_numpy(w).requires_grad_() for w in _weights(widths)]
    optimizer = torch.optim.Adam(weights, lr=1e-5)
    inputs, wanted = torch.from_numpy(x), torch.from_numpy(y)

    def run() -> Any:
        hidden = inputs
        for w in weights[:-1]:
            hidden = torch.relu(MXMatmul.apply(hidden, w, "e4m3"))
        found = MXMatmul.apply(hidden, weights[-1], "e4m3")
        value = torch.mean((found - wanted) ** 2)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.detach()

    return run


def entries(effort: Effort, *, quick: bool) -> Iterator[Entry]:
    """Yield the four comparisons."""
    yield _interpreter_entry(effort, quick)
    yield from _gpt_entries(effort, quick)
    yield _torch_entry(effort, quick)
