"""N:M pruning of a weight matrix along its contraction axis, as a dense result.

The values are rounded to BF16 first, so that groups contain equal magnitudes. Numerics:
the number of elements that differ, where the other of two equal values or another value
was kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.harness import Effort
from benchmarks.peers.blocks import as_values
from benchmarks.peers.contest import Entry, against
from benchmarks.peers.matmuls import operands

PATTERNS = ((2, 4), (4, 16))
Thunk = Callable[[], Any]


def _ours(n: int, m: int, x: np.ndarray) -> Thunk:
    compiled = jax.jit(lambda x: nj.sparsify(x, f"{n}:{m}", axis=0).todense())
    argument = jnp.asarray(x)
    return lambda: compiled(argument)


def _jax(n: int, m: int, x: np.ndarray) -> Thunk:
    """Return pruning written with `jax.lax.top_k`."""

    def prune(x: jax.Array) -> jax.Array:
        groups = x.T.reshape(-1, m)
        _, kept = jax.lax.top_k(jnp.abs(groups), n)
        mask = jax.nn.one_hot(kept, m, dtype=bool).any(1)
        return jnp.where(mask, groups, 0).reshape(x.T.shape).T

    compiled, argument = jax.jit(prune), jnp.asarray(x)
    return lambda: compiled(argument)


def _torch(n: int, m: int, x: np.ndarray) -> Thunk:
    """Return pruning written with `torch.topk`."""
    import torch

    argument = torch.from_numpy(x)

    def prune() -> Any:
        groups = argument.T.reshape(-1, m)
        kept = groups.abs().topk(n, dim=1).indices
        mask = torch.zeros_like(groups).scatter_(1, kept, 1.0)
        return (groups * mask).reshape(argument.T.shape).T

    return prune


def _qwix(n: int, m: int, x: np.ndarray) -> Thunk:
    """Return pruning by qwix's own functions, which it exports only in rules."""
    from qwix._src.core import sparsity

    def prune(x: jax.Array) -> jax.Array:
        return sparsity.apply_sparsity(x, sparsity.get_sparsity_mask(x, n, m, "C"))

    compiled, argument = jax.jit(prune), jnp.asarray(x)
    return lambda: compiled(argument)


PEERS: dict[str, tuple[str, Callable[..., Thunk]]] = {
    "jax.lax.top_k by hand": ("", _jax),
    "torch.topk by hand": ("torch", _torch),
    "qwix": ("qwix", _qwix),
}


def entries(effort: Effort, *, quick: bool) -> Iterator[Entry]:
    """Yield the comparison with every peer for both patterns."""
    size = 512 if quick else 1024
    x = operands(size, "bfloat16")[0]
    for n, m in PATTERNS:
        for peer, (module, prune) in PEERS.items():

            def numerics(n=n, m=m, prune=prune) -> dict[str, Any]:
                mine, other = (as_values(f(n, m, x)()) for f in (_ours, prune))
                return {"compared": x.size, "differ": int((mine != other).sum())}

            yield against(
                f"prune {n}:{m}",
                peer,
                needs=module,
                pair=lambda n=n, m=m, p=prune: (_ours(n, m, x), p(n, m, x)),
                numerics=numerics,
                effort=effort,
                sizes={"elements": x.size},
            )
