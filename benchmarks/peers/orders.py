"""The order in which matmuls add, derived from their results by `nj.reveal_order`.

It is the order of one row of K = 256 products, in a [16, 256] x [256, 16] matmul of
FP32 arrays that contain BF16 values. A peer's order is that of its host library for
this shape on this machine; ours is that of the modelled chip.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.peers.contest import Entry, absent, skipped
from neuronjax.errors import InvalidProgramError

K, OTHERS = 256, 16
Dot = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _ours(x: np.ndarray, w: np.ndarray) -> Any:
    return _EMULATED(jnp.asarray(x), jnp.asarray(w))


_EMULATED = nj.jit(lambda x, w: x @ w, target="trn2", policy="bf16")
_NATIVE = jax.jit(lambda x, w: x @ w)


def _native(x: np.ndarray, w: np.ndarray) -> Any:
    return _NATIVE(jnp.asarray(x), jnp.asarray(w))


def _torch(x: np.ndarray, w: np.ndarray) -> Any:
    import torch

    return (torch.from_numpy(x) @ torch.from_numpy(w)).numpy()


def _numpy(x: np.ndarray, w: np.ndarray) -> Any:
    return x @ w


PEERS: dict[str, tuple[str, Dot]] = {
    "neuronjax": ("", _ours),
    "jax.jit in FP32": ("", _native),
    "NumPy": ("", _numpy),
    "torch": ("torch", _torch),
}


def order(dot: Dot) -> str:
    """Return the tree of additions as text of at most 100 characters."""
    ones = np.ones((K, OTHERS), np.float32)
    others = np.zeros((OTHERS, K), np.float32)

    def total(x: np.ndarray) -> Any:
        others[0] = x
        return np.asarray(dot(others.copy(), ones))[0, 0]

    try:
        text = str(nj.reveal_order(total, K))
    except InvalidProgramError as error:
        return f"no tree: {error.what}"
    return text if len(text) <= 100 else text[:97] + "..."


def entries() -> list[Entry]:
    """Return an entry for each contender."""
    found = []
    for peer, (module, dot) in PEERS.items():
        why = absent(module)
        if why:
            found.append(skipped("order of addition", peer, why))
            continue
        about = {"task": "order of addition", "peer": peer, "status": "revealed"}
        found.append({**about, "sizes": {"k": K}, "order": order(dot)})
    return found
