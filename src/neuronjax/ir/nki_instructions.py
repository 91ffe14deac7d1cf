"""Every instruction of `nki.isa`, one row each; `nki_spec` defines the rows.

Source: the page of nki.isa of the same name ("Supported arch versions", "Memory types",
"Data types", "Tensor indirection"). If the page does not name the cores, as for `topk`,
every core has the instruction here. "modelled" means that the vendor does not publish
the order of additions, the polynomials or the random generator.
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
