"""Questions about which alternative a chip computes, where no document states it.

The alternatives are computed from a probe's inputs, in NumPy or by the emulator under
several policies; neuronjax's own behaviour is one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from neuronjax.testing.silicon.cases import ProbeCase, patterns

Answer = Callable[[ProbeCase], np.ndarray]
Answers = Mapping[str, np.ndarray]

WORDS = {"vector": "VectorE", "scalar": "ScalarE", "gpsimd": "GpSimd", "dma": "DMA"}


def same_numbers(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return which elements have the same bits; all NaNs count as equal."""
    return patterns(found) == patterns(expected)


def same_bits(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return which elements have the same bits, payloads of NaNs included."""
    return patterns(found, payloads=True) == patterns(expected, payloads=True)


@dataclass(frozen=True, kw_only=True)
class Question:
    """One choice that a chip can confirm or contradict.

    Attributes:
        name: the engine and the operation, as in reports.
        claim: the subject of the claim in `report.exactness` that the question tests.
        probes: the probes whose results decide; some may be missing.
        answers: returns, for a probe, the result of every alternative by name.
        ours: returns the alternative that neuronjax computes; "" for no promise.
        where: returns a mask of the elements that are compared; if None, all are.
        observed: returns the observed result; by default the output "out".
        agrees: returns, per element, whether a result and an answer are the same.
    """

    name: str
    claim: str
    probes: tuple[str, ...]
    answers: Callable[[ProbeCase], Answers]
    ours: Callable[[ProbeCase], str]
    where: Callable[[ProbeCase], np.ndarray] | None = None
    observed: Answer = lambda case: case["out"]
    agrees: Callable[[np.ndarray, np.ndarray], np.ndarray] = same_numbers


def ask(
    name: str,
    claim: str,
    probe: str | tuple[str, ...],
    answers: Mapping[str, Answer],
    ours: str | None = None,
    **more: Any,
) -> Question:
    """Return a question whose `answers` are functions of a case. Neuronjax's
    alternative is the first, unless `ours` names another."""
    own = next(iter(answers)) if ours is None else ours
    return Question(
        name=name,
        claim=claim,
        probes=(probe,) if isinstance(probe, str) else probe,
        answers=lambda case: {key: answer(case) for key, answer in answers.items()},
        ours=lambda case: own,
        **more,
    )


def each(
    table: Mapping[str, Any], answer: Callable[[Any, ProbeCase], np.ndarray]
) -> dict[str, Answer]:
    """Return the answer `answer(entry, case)` for every entry of a table."""
    return {name: partial(answer, entry) for name, entry in table.items()}
