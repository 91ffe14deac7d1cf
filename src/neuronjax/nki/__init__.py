"""`neuronjax.nki`: NKI kernels on the emulated engines.

    @nki.jit kernel: its Python code runs once per specialisation
        | trace   nl and nisa calls -> instructions over views    (trace.py, isa/)
        | roll    slots, signatures, loops over tables            (execution/)
        | run     semantics of the instructions, in one jax.jit   (execution.tiles)
        v
      arrays, as they were given: NumPy, JAX or PyTorch

Names and signatures are those of the vendor's nki package; `language` is its
nki.language, `isa` its nki.isa.
"""

from neuronjax.ir.nki_dtypes import (
    DType as DType,
    DType as dtype,  # noqa: F401  (the vendor's name of it)
)
from neuronjax.nki import collectives as collectives, isa as isa, language as language
from neuronjax.nki.hazards import check as check
from neuronjax.nki.install import install as install
from neuronjax.nki.kernel import Kernel as Kernel, jit as jit, simulate as simulate
from neuronjax.nki.memory import NKIObject as NKIObject
