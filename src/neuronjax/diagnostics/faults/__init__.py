"""What is numerically wrong with a program, on which line, and why.

A run is compared with float64 and with float64 on *perturbed* data: arguments and
operands of matmuls moved by what their formats cannot hold (`perturbation.py`). What a
program's result changes by that is no fault, it is the problem's condition. A result is
wrong if it is farther off than that, and than the roundings of the coarsest format on
its way (`judgement.py`). Then `search.py` looks for the op that makes the error, among
the ops that the result depends on, from what a walk has heard of each (`evidence.py`,
`recorder.py`); `naming.py` calls it by its kind. Where no result is wrong, nothing is
said.
"""

from neuronjax.diagnostics.faults.fault import Fault as Fault
