"""How many programs XLA compiled, and for how long, while something ran."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"


@dataclass
class Compilations:
    """What XLA compiled.

    Attributes:
        programs: how many; op by op each op of a kind and shape that is not exact.
        seconds: how long that took.
    """

    programs: int = 0
    seconds: float = 0.0

    @classmethod
    def so_far(cls) -> Compilations:
        """Since this was first asked in the process."""
        total = _total()
        return cls(total.programs, total.seconds)

    def __sub__(self, earlier: Compilations) -> Compilations:
        return Compilations(
            self.programs - earlier.programs, self.seconds - earlier.seconds
        )


@functools.cache
def _total() -> Compilations:
    """The one count of the process, which JAX tells; its listeners never end."""
    total = Compilations()

    def heard(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event == _COMPILED:
            total.programs += 1
            total.seconds += duration_secs

    jax.monitoring.register_event_duration_secs_listener(heard)
    return total
