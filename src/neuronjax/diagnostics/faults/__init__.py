"""Faults: what is numerically wrong with a program, on which line, and why.

A run is compared with float64 on the same data and with float64 on *perturbed* data, in
which arguments and operands of matmuls are changed by about a roundoff of their formats
(`perturbation.py`). An error as large as the effect of the perturbation comes from the
condition of the problem and is no fault. A result is wrong if its error exceeds both
this effect and the roundings of the coarsest format on which the result depends
(`judgement.py`). A walk (an execution op by op) records the errors of each op
(`evidence.py`, `recorder.py`). `search.py` finds the op that makes an error;
`naming.py` names the fault.
"""

from neuronjax.diagnostics.faults.fault import Fault as Fault
