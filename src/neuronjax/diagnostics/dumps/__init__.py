"""Tensors saved by a chip or another framework, compared with a program's values.

`reading.py` reads tensors from files without running code, `matching.py` names the
values of a program and matches tensors with them, `comparing.py` checks whether each
tensor is within the error bounds of its value, and `dump_result.py` shows the results.
"""
