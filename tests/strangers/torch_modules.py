"""Modules of PyTorch, as functions of JAX by torchax: `make torch`.

They are compared with native JAX as every stranger is, and the function that torchax
makes of a module with PyTorch itself, so that a wrong translation is no agreement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tests.strangers.program import Call, stranger
from tests.zoo.program import cross_entropy, integers, uniform

#: Relative, in the 2-norm, of two FP32 runs of one small module.
CLOSE = 1e-5


def of_module(module: Any, *args: jax.Array) -> Call:
    """Return a module as (function, arguments), once PyTorch gives the same result."""
    import torch
    import torchax

    weights, function = torchax.extract_jax(module)
    with torch.no_grad():
        expected = module(*(torch.from_numpy(np.array(x)) for x in args)).numpy()
    found = np.asarray(jax.jit(function)(weights, args))
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    if error > CLOSE:
        raise ValueError(f"torchax and PyTorch differ by {error:.1e}")
    return function, (weights, args)


def _seeded(make: Callable[[Any], Any]) -> Any:
    import torch

    torch.manual_seed(0)
    return make(torch.nn)


def language_model() -> Any:
    """Return a causal attention layer between an embedding and a head."""
    import torch

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(64, 32)
            self.qkv = torch.nn.Linear(32, 96)
            self.head = torch.nn.Linear(32, 64)

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            heads = (a.unflatten(-1, (4, 8)) for a in self.qkv(x).chunk(3, -1))
            q, k, v = (a.transpose(1, 2) for a in heads)
            mixed = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True
            )
            return self.head(x + mixed.transpose(1, 2).flatten(2))

    return _seeded(lambda nn: Attention())


@stranger("torchax")
def torch_mlp() -> Call:
    """torch: layer norm, linear layers and GELU."""
    module = _seeded(
        lambda nn: nn.Sequential(
            nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 4)
        )
    )
    return of_module(module, uniform(1, (8, 32)))


@stranger("torchax")
def torch_convolution() -> Call:
    """torch: convolution, batch norm with its buffers, max pooling."""
    module = _seeded(
        lambda nn: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, 10),
        )
    )
    return of_module(module.eval(), uniform(1, (2, 3, 8, 8)))


@stranger("torchax")
def torch_encoder() -> Call:
    """torch: a layer of a transformer's encoder."""
    module = _seeded(lambda nn: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True))
    return of_module(module.eval(), uniform(1, (2, 8, 32)))


@stranger("torchax")
def torch_attention() -> Call:
    """torch: a causal language model."""
    return of_module(language_model(), integers(1, (2, 16), 64))


@stranger("torchax")
def torch_training() -> Call:
    """torch: a step of that model by jax.grad and Optax."""
    import optax

    tokens = integers(1, (4, 17), 64)
    function, (weights, _) = of_module(language_model(), tokens[:, :-1])
    optimizer = optax.sgd(1e-2, momentum=0.9)

    def loss_of(weights: Any, tokens: jax.Array) -> jax.Array:
        logits = function(weights, (tokens[:, :-1],)).reshape(-1, 64)
        return cross_entropy(logits, tokens[:, 1:].reshape(-1))[0]

    def step(weights: Any, state: Any, tokens: jax.Array) -> Any:
        loss, gradient = jax.value_and_grad(loss_of)(weights, tokens)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(weights, updates), state, loss

    return step, (weights, optimizer.init(weights), tokens)


@stranger("torchax")
def torch_exported() -> Call:
    """torch: a module through torch.export, a file and neuronjax.load."""
    import tempfile
    from pathlib import Path

    import torch
    from torchax.export import exported_program_to_stablehlo

    import neuronjax as nj

    module = _seeded(lambda nn: nn.Sequential(nn.Linear(32, 64), nn.Tanh())).eval()
    x = uniform(1, (8, 32))
    exported = torch.export.export(module, (torch.from_numpy(np.array(x)),))
    weights, program = exported_program_to_stablehlo(exported)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "module.jaxexport")
        path.write_bytes(program.serialize())
        loaded = nj.load(path, target="trn2", policy="fp32")
    (emulated,) = jax.tree.leaves(loaded(weights, ([x],)))
    expected = module(torch.from_numpy(np.array(x))).detach().numpy()
    error = np.linalg.norm(emulated - expected) / np.linalg.norm(expected)
    if error > CLOSE:
        raise ValueError(f"the loaded module and PyTorch differ by {error:.1e}")
    return of_module(module, x)
