"""Faults that the diagnostics' authors may look at while they build them.

One file a theme. Every case was run under its policy and compared with the healthy one
in FP64. Some were written after the diagnostics, of the kinds of which fewest were
found; some were held out until no more of them were found blindly.
"""

from benchmarks.faults.case import faults_in

FAULTS = faults_in(__name__, __path__)
