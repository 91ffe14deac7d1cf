"""Guarding numerics in CI: goldens, assertions on bits, conformance vectors.

    from neuronjax.testing import golden, assert_bitwise_equal, assert_ulp

With pytest, the plugin `neuronjax_pytest` adds fixtures, markers and options.
"""

from neuronjax.testing.bits import BitsDiffer as BitsDiffer
from neuronjax.testing.bits import LeafDifference as LeafDifference
from neuronjax.testing.bits import assert_bitwise_equal as assert_bitwise_equal
from neuronjax.testing.bits import assert_ulp as assert_ulp
from neuronjax.testing.golden import GoldenMismatch as GoldenMismatch
from neuronjax.testing.golden import GoldenReport as GoldenReport
from neuronjax.testing.golden import ProgramChangedWarning as ProgramChangedWarning
from neuronjax.testing.golden import check_stored as check_stored
from neuronjax.testing.golden import golden as golden
from neuronjax.testing.same_program import ProgramsDiffer as ProgramsDiffer
from neuronjax.testing.same_program import assert_same_program as assert_same_program
