"""A comparison of neuronjax with a Trainium chip, by kernels ("probes") that run on it.

kit, probes, inputs  write the kit, list its probes, and make their inputs
results, cases       read a chip's results, and convert them and the inputs to numbers
questions_*          list the alternatives to each claim
folds, roundings, functions  compute the alternatives
verdicts             finds which alternatives fit
"""

from neuronjax.testing.silicon.kit import write_silicon_kit as write_silicon_kit
from neuronjax.testing.silicon.verdicts import (
    SiliconFinding as SiliconFinding,
    SiliconReport as SiliconReport,
    check_silicon as check_silicon,
)
