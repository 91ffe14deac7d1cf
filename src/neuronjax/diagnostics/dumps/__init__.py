"""Tensors that a chip or another framework has saved, beside a program's values.

`reading.py` reads them from files, none of which can run code; `matching.py` says what
the values of a program are called and which tensor is which value, `comparing.py`
whether it is one that the program may legally have there, and `dump_result.py` shows
it.
"""
