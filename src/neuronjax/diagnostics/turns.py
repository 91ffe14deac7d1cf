"""A cache of results; a key is a computation and the identities of the arrays it reads.

A result is kept during its op and, in a loop, during the op's next execution, which may
read the same arrays. The cache keeps the arrays alive, so that identities stay unique.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from neuronjax.diagnostics.parallel_runs import OpPath

#: Results from arrays with more elements are not kept for the next iteration.
KEPT = 1 << 14


class Memory:
    """Cached results of the current op, and of the previous iteration of every op."""

    def __init__(self) -> None:
        self._now: dict[Hashable, tuple[Any, Sequence[Any]]] = {}
        self._before: dict[Hashable, tuple[Any, Sequence[Any]]] = {}
        self._moment: tuple[Any, ...] = ()
        # Op -> results of its last iteration; None if that iteration reused nothing.
        self._turns: dict[OpPath, dict | None] = {}
        self._hits = 0

    def begin(self, path: OpPath, iterations: tuple[int, ...]) -> None:
        """Begin an execution of an op, unless another device has begun it already."""
        if (path, iterations) == self._moment:
            return
        if self._moment and self._moment[1]:
            self._keep(self._moment[0])
        self._moment = (path, iterations)
        self._now, self._hits = {}, 0
        self._before = (self._turns.get(path) if iterations else None) or {}

    def _keep(self, path: OpPath) -> None:
        if path in self._turns and not self._hits:
            self._turns[path] = None
        if self._turns.get(path, {}) is not None:
            self._turns[path] = {
                key: (made, arrays)
                for key, (made, arrays) in self._now.items()
                if all(getattr(x, "size", 0) <= KEPT for x in arrays)
            }

    def once(
        self, key: Hashable, arrays: Sequence[Any], make: Callable[[], Any]
    ) -> Any:
        """Return the result of computation `key` on `arrays`, cached or from `make`."""
        whole = (key, *map(id, arrays))
        found = self._now.get(whole)
        if found is None:
            found = self._before.get(whole)
            self._hits += found is not None
            self._now[whole] = found = found or (make(), arrays)
        return found[0]
