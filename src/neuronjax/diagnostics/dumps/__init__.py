"""Compare tensors saved by a chip or another framework with a program's values.

`reading.py` reads them from files without running code, `matching.py` names the values
of a program and matches tensors with them, `comparing.py` checks whether the program
may legally have a tensor there, and `dump_result.py` shows the results.
"""
