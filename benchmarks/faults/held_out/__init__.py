"""Faults that nobody who works on the diagnostics has looked at.

They are counted, never read.
"""

from benchmarks.faults.case import faults_in

FAULTS = faults_in(__name__, __path__)
