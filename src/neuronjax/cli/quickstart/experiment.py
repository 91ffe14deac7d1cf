"""The quickstart as an experiment: one recipe, one corpus, several machines.

The native machine comes first, for every ratio is against it; all start from the same
parameters and see the same batches. Losses are in nats per character, seconds are those
of this computer and say nothing about a Trainium's speed.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

import neuronjax as nj
from neuronjax.cli.quickstart.data import Corpus
from neuronjax.cli.quickstart.train import TrainingRecipe, train
from neuronjax.report.progress import StudyProgress

_LAST = 10  # the final training loss is the mean over as many steps
_MATMULS = ("nc_matmul", "nc_matmul_mx")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """Where a run happens: a neuronjax target or "host", and a preset's name."""

    target: str
    policy: str

    @classmethod
    def parse(cls, text: str) -> Setup:
        """Reads "trn2/fp8".

        Raises:
            InvalidProgramError: not of that form, or an unknown target or policy.
        """
        target, slash, policy = text.partition("/")
        if not slash:
            raise nj.InvalidProgramError(
                f"{text!r} is no target and policy",
                remedy='write them with a slash between: "trn2/fp8"',
            )
        nj.jit(abs, target=target, policy=nj.Policy.preset(policy))  # if there are such
        return cls(target=target, policy=policy)

    def __str__(self) -> str:
        return f"{self.target}/{self.policy}"

    @property
    def jit(self) -> Callable[..., Any]:
        """`jax.jit`, or `neuronjax.jit` for this target and policy."""
        if self == NATIVE:
            return jax.jit
        return functools.partial(nj.jit, target=self.target, policy=self.policy)


NATIVE = Setup(target="host", policy="fp32")
EMULATED = ("trn1/bf16", "trn2/fp8", "trn3/mxfp8")


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuickstartRun:
    """One machine's results.

    Attributes:
        machine: where.
        losses: training loss of every step.
        heldout_loss: mean over the held-out batches, after training.
        seconds_per_step: median.
        compile_seconds: of the train step and the evaluation.
        instructions: engine -> instructions in the train step's program, in which a
            loop's body and a function count once; empty for the native run.
        matmul_dtypes: of the operands of all matmuls.
    """

    machine: Setup
    losses: Sequence[float]
    heldout_loss: float
    seconds_per_step: float
    compile_seconds: float
    instructions: Mapping[str, int]
    matmul_dtypes: Sequence[str]

    @property
    def train_loss(self) -> float:
        """Mean of the last steps' losses."""
        return statistics.fmean(self.losses[-_LAST:])

    @property
    def heldout_perplexity(self) -> float:
        """exp of the held-out loss: of how many characters the model is in doubt."""
        return math.exp(self.heldout_loss)


def run_on(
    machine: Setup, recipe: TrainingRecipe, corpus: Corpus, bars: StudyProgress
) -> QuickstartRun:
    """Train on a machine, and show the steps."""
    bars.begin(str(machine))
    trained = train(
        machine.jit, recipe, corpus, lambda loss: bars.advance({"loss": loss})
    )
    program = () if machine == NATIVE else trained.step.instructions
    matmuls = [i for i in program if i.name in _MATMULS]
    # Behind the two operands come the scales of microscaled ones.
    dtypes = {view.type.dtype.name for i in matmuls for view in i.operands[:2]}
    return QuickstartRun(
        machine=machine,
        losses=trained.losses,
        heldout_loss=trained.heldout_loss,
        seconds_per_step=statistics.median(trained.step_seconds),
        compile_seconds=trained.compile_seconds,
        instructions=dict(collections.Counter(i.engine for i in program)),
        matmul_dtypes=sorted(dtypes) if matmuls else ("float32",),
    )
