"""The wiring of trn2 as the driver has it, an oracle of the topologies.

Source: the neighbour tables of aws-neuron-driver
(github.com/aws-neuron/aws-neuron-driver, fca19f7d), and of newer versions of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ENGINE_NEIGHBOURS: tuple[tuple[int, int, int, int], ...] = (
    (12, 1, 3, 4),
    (0, 13, 5, 2),
    (14, 3, 1, 6),
    (2, 15, 7, 0),
    (8, 5, 7, 0),
    (4, 9, 1, 6),
    (10, 7, 5, 2),
    (6, 11, 3, 4),
    (4, 9, 11, 12),
    (8, 5, 13, 10),
    (6, 11, 9, 14),
    (10, 7, 15, 8),
    (0, 13, 15, 8),
    (12, 1, 9, 14),
    (2, 15, 13, 10),
    (14, 3, 11, 12),
)
"""The chip that each S-engine of a chip of trn2 has its link to.

An S-engine is a quarter of a chip: two physical cores, one HBM stack. Each of the four
links of a torus ends on one of them; what another S-engine sends over it is routed on
the chip first. ASSUMPTION: that routing costs nothing, for nobody published its rate.
"""

Z_ENGINES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"left": (1, 2), "right": (0, 3)}
)
"""The S-engines on which the links to both neighbouring instances of an UltraServer end
[DRV, the neighbour tables of newer versions]."""
