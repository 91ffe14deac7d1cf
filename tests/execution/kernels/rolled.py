"""How a kernel's program was rolled."""

from __future__ import annotations

from collections.abc import Iterable

from neuronjax.execution.kernels.rolling import Node
from neuronjax.execution.kernels.splitting import KernelStep


def executed(nodes: Iterable[Node]) -> int:
    """Instructions that run."""
    return sum(
        len(n.ints) if isinstance(n.kind, KernelStep) else executed(n.body)
        for n in nodes
    )


def bodies(nodes: Iterable[Node]) -> int:
    """Instructions in the code."""
    return sum(1 if isinstance(n.kind, KernelStep) else bodies(n.body) for n in nodes)
