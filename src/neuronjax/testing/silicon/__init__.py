"""A chip's own answers: probes to run on a Trainium, and what their results decide.

kit           writes the kit, kit.zip       probes        what it asks for
inputs        what probes are given         results       what came back
cases         the same as numbers
questions     alternatives to each claim    folds, roundings, functions
verdicts      which of them fit
"""

from neuronjax.testing.silicon.kit import write_silicon_kit as write_silicon_kit
from neuronjax.testing.silicon.verdicts import (
    SiliconFinding as SiliconFinding,
    SiliconReport as SiliconReport,
    check_silicon as check_silicon,
)
