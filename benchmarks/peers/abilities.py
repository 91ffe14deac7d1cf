"""The features that each peer emulates, independent of speed.

`abilities.csv` has a row for each question and a column for each peer: "yes", "no", or
a text for a partial feature. Answers are about the measured version of a peer, from its
documentation and code; where an entry measured its numerics, they are the evidence.
"""

from __future__ import annotations

import csv
from pathlib import Path

_TEXT = Path(__file__).with_suffix(".csv").read_text()
(_, *_PEERS), *_ROWS = csv.reader(_TEXT.splitlines())
QUESTIONS = tuple(question for question, *_ in _ROWS)
ABILITIES: dict[str, tuple[str, ...]] = {
    name: tuple(row[n] for row in _ROWS) for n, name in enumerate(_PEERS, 1)
}

#: Peers that could not be run here, and the reasons.
NOT_RUN = {
    "nki.simulate": "its wheel is on the vendor's index and not on PyPI. It runs one "
    "kernel at a time. It has no collectives, checks no capacity of memories, and "
    "predicts no time.",
    "microxcaling": "it has no wheel. The plain PyTorch emulation here follows the "
    "same published recipe.",
    "Trainium": "we have no hardware. Sections below show what others measured on it.",
}
