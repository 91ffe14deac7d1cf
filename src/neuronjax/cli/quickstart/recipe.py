"""The quickstart's recipe: model, optimizer, sizes and seed; no machine.

The defaults train 1,037,696 parameters on 16 x 64 characters per step: two to three
minutes on two cores for one native and three emulated runs, and enough to see learning.
"""

from __future__ import annotations

import dataclasses

import optax

from neuronjax.cli.quickstart.data import VOCAB_SIZE
from neuronjax.cli.quickstart.model import GPTConfig

_MODEL = GPTConfig(vocab_size=VOCAB_SIZE, layers=5, scan_layers=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a run, beside the machine it runs on.

    Attributes:
        model: the sizes of the GPT.
        steps: training steps.
        batch: sequences per step.
        length: predictions per sequence.
        peak_rate: learning rate after the warm-up, a tenth of all steps.
        heldout_batches: batches of the evaluation.
        seed: of the initial parameters and of the batches.
    """

    model: GPTConfig = _MODEL
    steps: int = 100
    batch: int = 16
    length: int = 64
    peak_rate: float = 5e-3
    heldout_batches: int = 8
    seed: int = 0

    def optimizer(self) -> optax.GradientTransformation:
        """AdamW under clipped gradients, a linear warm-up and a cosine decay."""
        warmup = max(1, self.steps // 10)
        rate = optax.warmup_cosine_decay_schedule(
            0.0, self.peak_rate, warmup, max(self.steps, warmup + 1)
        )
        adamw = optax.adamw(rate, b2=0.95, weight_decay=0.1)
        return optax.chain(optax.clip_by_global_norm(1.0), adamw)


TINY = Recipe(
    model=GPTConfig(
        vocab_size=VOCAB_SIZE, layers=1, heads=1, width=16, hidden=16, scan_layers=True
    ),
    steps=2,
    batch=2,
    length=8,
    heldout_batches=1,
)
"""Learns nothing; tries every part in seconds."""
