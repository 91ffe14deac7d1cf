"""Probes to run on a Trainium chip, and what their results decide.

kit           writes the kit, kit.zip       probes        sizes of the probes
inputs        inputs of probes              results       reads the results
cases         inputs and results as numbers
questions     alternatives to each claim    folds, roundings, functions
verdicts      which alternatives fit
"""

from neuronjax.testing.silicon.kit import write_silicon_kit as write_silicon_kit
from neuronjax.testing.silicon.verdicts import (
    SiliconFinding as SiliconFinding,
    SiliconReport as SiliconReport,
    check_silicon as check_silicon,
)
