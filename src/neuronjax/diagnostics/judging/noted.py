"""Whether a program could hold results that somebody noted for known inputs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from neuronjax.ir.kernel import KernelProgram

_MOST_SEED = 1 << 32


def seeds(program: KernelProgram, asked: Sequence[int]) -> tuple[int, ...]:
    """Those that were asked for; one more, which nobody knows, if it could.

    A program that says fewer numbers than a result has elements cannot hold the result
    of a draw, and another draw would take as long again for nothing."""
    if _said(program) < min((r.size for r in program.results), default=0):
        return tuple(asked)
    return (*asked, secrets.randbelow(_MOST_SEED))


def _said(program: KernelProgram) -> int:
    """How many numbers stand in it: data, immediates."""
    data = sum(s.size for s in program.storages if s.initial is not None)
    return data + sum(len(i.parameters) for i in program.body.walk())
