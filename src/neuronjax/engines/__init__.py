"""Instruction -> arrays, one file per engine; importing this fills the dispatch table."""

from neuronjax.engines import (
    dma as dma,
    gpsimd as gpsimd,
    scalar as scalar,
    tensor as tensor,
    vector as vector,
)
from neuronjax.engines.dispatch import Registers as Registers, execute as execute
