"""Tests of numerics in CI: goldens, comparisons of bits, conformance vectors, silicon.

    from neuronjax.testing import golden, assert_bitwise_equal, assert_ulp

With pytest, the plugin `neuronjax_pytest` adds fixtures, markers and options.
"""

from neuronjax.testing.bits import (
    BitsDiffer as BitsDiffer,
    LeafDifference as LeafDifference,
    assert_bitwise_equal as assert_bitwise_equal,
    assert_ulp as assert_ulp,
)
from neuronjax.testing.golden import (
    ProgramChangedWarning as ProgramChangedWarning,
    check_stored as check_stored,
    golden as golden,
)
from neuronjax.testing.golden_compare import (
    ProgramsDiffer as ProgramsDiffer,
    assert_same_program as assert_same_program,
)
from neuronjax.testing.golden_report import (
    GoldenMismatch as GoldenMismatch,
    GoldenReport as GoldenReport,
)
from neuronjax.testing.silicon import (
    SiliconFinding as SiliconFinding,
    SiliconReport as SiliconReport,
    check_silicon as check_silicon,
    write_silicon_kit as write_silicon_kit,
)
