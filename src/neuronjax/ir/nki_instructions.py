"""Every instruction of `nki.isa`, one row each; `nki_spec` says what a row holds.

Sources: the page of nki.isa of its name ("Supported arch versions", "Memory types",
"Data types", "Tensor indirection"). Where it is silent about a core, as of `topk`,
every core has the instruction here. "modelled": the vendor does not publish in which
order it adds, which polynomials it takes, or its random generator.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from neuronjax.ir.nki_computing import COMPUTING
from neuronjax.ir.nki_moving import MOVING
from neuronjax.ir.nki_spec import InstructionSpec

SPECS: Mapping[str, InstructionSpec] = MappingProxyType(
    {spec.name: spec for spec in (*COMPUTING, *MOVING)}
)
