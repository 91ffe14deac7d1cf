"""The quickstart's text: the language reference that comes with every Python.

Tokens are the bytes of UTF-8, so there is no vocabulary to build and nothing is
downloaded. The text differs between Python versions; everything else is a function of
the seed. The last tenth of the text is used only for evaluation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pydoc_data.topics import topics

import numpy as np

VOCAB_SIZE = 256


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Text as tokens in [0, VOCAB_SIZE), int32.

    Attributes:
        train: the text from which batches are drawn.
        heldout: the end of the text, on which the model is never trained.
    """

    train: np.ndarray
    heldout: np.ndarray

    def batches(
        self, *, steps: int, size: int, length: int, seed: int
    ) -> Iterator[np.ndarray]:
        """Yield random windows of the training text, int32 [size, length + 1] per step.

        A window makes `length` predictions, and therefore has one more token.
        """
        generator = np.random.default_rng(seed)
        window = np.arange(length + 1)
        for _ in range(steps):
            starts = generator.integers(len(self.train) - length, size=(size, 1))
            yield self.train[starts + window]

    def heldout_batches(self, *, count: int, size: int, length: int) -> np.ndarray:
        """Return windows spread over the held-out text, [count, size, length + 1]."""
        last = len(self.heldout) - length - 1
        starts = np.linspace(0, last, count * size).astype(int)
        windows = self.heldout[starts[:, None] + np.arange(length + 1)]
        return windows.reshape(count, size, length + 1)


def load(heldout_fraction: float = 0.1) -> Corpus:
    """Return Python's documentation, sorted and split into train and held out."""
    text = "\n".join(topics[name] for name in sorted(topics))
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    train_length = round(len(tokens) * (1 - heldout_fraction))
    return Corpus(train=tokens[:train_length], heldout=tokens[train_length:])
