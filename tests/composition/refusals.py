"""The cells of the matrix that are refused, each with its reason in docs/errors.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import neuronjax as nj

Cell = tuple[str, str]
"""A verb of `verbs.VERBS` and a kind of `programs.KINDS`."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """What is refused by name.

    Attributes:
        row: the beginning of its row in the table of docs/errors.md, which has the
            reason and what to write instead.
        error: what is raised.
        words: a regular expression of the message.
        cells: the cells that are refused for it.
    """

    row: str
    error: type[Exception]
    words: str
    cells: Sequence[Cell]


DELAYED = ("delayed", "delayed_mesh")

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        row="`grad` of a loaded program that was exported without its derivative",
        error=nj.UnsupportedError,
        words="a loaded program without a derivative",
        cells=[("grad", "stablehlo")],
    ),
    Refusal(
        row="`grad` and `vmap` of a function that has `collect=True`",
        error=nj.UnsupportedError,
        words="with delayed scaling: its amax history belongs to whole steps",
        cells=[(verb, kind) for verb in ("grad", "vmap") for kind in DELAYED],
    ),
    Refusal(
        row="`tolerance` and `compare_dump` of a function with callbacks",
        error=nj.UnimplementedError,
        words="pure_callback has no rule for bounds of errors",
        cells=[("tolerance", "callback"), ("compare_dump", "callback")],
    ),
    Refusal(
        row="`tolerance` and `compare_dump` of a function with callbacks, or with",
        error=nj.UnimplementedError,
        words="nki_kernel has no rule for bounds of errors",
        cells=[("tolerance", "kernel"), ("compare_dump", "kernel")],
    ),
    Refusal(
        row="`jax.export` of a function with callbacks",
        error=NotImplementedError,
        words="serialization of host_callbacks",
        cells=[("jax.export", "callback")],
    ),
    Refusal(
        row="a golden (a stored result) of a function that is partitioned",
        error=nj.UnsupportedError,
        words="a portable program cannot be sharded",
        cells=[("goldens", "in_shardings")],
    ),
)


def refusal_of(verb: str, kind: str) -> Refusal | None:
    """Return why a cell is refused; None where it has an answer."""
    found = [r for r in REFUSALS if (verb, kind) in r.cells]
    assert len(found) <= 1, f"two reasons to refuse {verb} of {kind}"
    return found[0] if found else None
