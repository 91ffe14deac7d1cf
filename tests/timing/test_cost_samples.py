"""Whatever can be lowered has a cost: a sample of every op, on every chip."""

from __future__ import annotations

import math

import numpy as np
import pytest

from docs.made.collective_samples import SAMPLES
from docs.made.operation_samples import KIND_DTYPES, program
from neuronjax.errors import NeuronJaxError
from neuronjax.hardware import CHIPS, resolve_target
from neuronjax.lowering import lower
from neuronjax.policy import Policy
from neuronjax.timing.cost import own_seconds, ways
from neuronjax.timing.work import QUEUES, Core
from tests.timing.instructions import SCHEDULED

COST_FREE = frozenset({"dma_copy", "bitcast_copy", "memset", "im2col"})


def lowered(name: str, dtype: np.dtype, target: str):
    """The instructions of a sample; none where the chip refuses it."""
    sample = program(SAMPLES[name][1], name, dtype)
    try:
        return lower(sample, target=resolve_target(target), policy=Policy()).walk()
    except NeuronJaxError:
        return ()


@pytest.mark.parametrize(
    "target",
    ["trn2", *[pytest.param(n, marks=pytest.mark.slow) for n in ("trn1", "trn3")]],
)
def test_every_sample_has_a_cost(target):
    core = Core(CHIPS[target], 1)
    seen = set()
    for name, (kinds, _) in SAMPLES.items():
        for kind in kinds:
            for i in lowered(name, KIND_DTYPES[kind], target):
                if isinstance(i, SCHEDULED):
                    continue
                seen.add(i.name)
                found = ways(i, core)
                assert found, i.name
                for way in found:
                    assert way or i.name in COST_FREE, i.name
                    assert 0 <= own_seconds(way) < math.inf
                    assert all(w.queue in QUEUES and w.tiles >= 1 for w in way)
    assert len(seen) > 25
