"""Faults: what is numerically wrong with a program, on which line, and why.

A run is compared with float64 on the same data and with float64 on *perturbed* data, in
which arguments and operands of matmuls are moved by about a roundoff of their formats
(`perturbation.py`). An error as large as the effect of the perturbation comes from the
condition of the problem and is no fault. A result is wrong if its error exceeds both
this effect and the roundings of the coarsest format on its way (`judgement.py`). A walk
records figures of each op (`evidence.py`, `recorder.py`); from these `search.py` finds
the op that makes the error, and `naming.py` names the kind of fault.
"""

from neuronjax.diagnostics.faults.fault import Fault as Fault
