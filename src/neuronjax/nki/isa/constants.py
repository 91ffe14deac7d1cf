"""Enumerations of nki.isa, with the documented values."""

import enum

from neuronjax.ir.nki_dtypes import FP32_MIN as FP32_MIN


class engine(enum.Enum):
    """Engines of a NeuronCore."""

    tensor = 1
    vector = 5
    scalar = 2
    gpsimd = 3
    dma = 4
    sync = 6
    unknown = 0


tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
unknown_engine = engine.unknown


class reduce_cmd(enum.Enum):
    """The effect of an instruction on its engine's accumulator registers."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(enum.Enum):
    """The unit that generates DMA descriptors."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(enum.Enum):
    """The effect of a runtime index that is out of bounds."""

    error = 0
    skip = 1


class matmul_perf_mode(enum.Enum):
    """The way in which a matmul packs its operands."""

    none = "none"
    double_row = "double_row"


class nc_version(enum.IntEnum):
    """The generation of the NeuronCore, an integer because kernels compare it."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


class dma_engine(enum.Enum):
    """The DMA engine that moves data between the cores of a logical core."""

    dma = 1
    gpsimd_dma = 2
