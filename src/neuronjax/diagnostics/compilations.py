"""The number of XLA's compilations, and their time."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"


@dataclass
class Compilations:
    """XLA's compilations: the number of programs, and the total compile time."""

    programs: int = 0
    seconds: float = 0.0

    @classmethod
    def so_far(cls) -> Compilations:
        """Return the compilations since this method was first called in the process."""
        return replace(_total())

    def __sub__(self, earlier: Compilations) -> Compilations:
        return Compilations(
            self.programs - earlier.programs, self.seconds - earlier.seconds
        )


@functools.cache
def _total() -> Compilations:
    total = Compilations()

    def heard(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event == _COMPILED:
            total.programs += 1
            total.seconds += duration_secs

    jax.monitoring.register_event_duration_secs_listener(heard)
    return total
