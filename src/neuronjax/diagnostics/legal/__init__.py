"""Every result that a program may legally have on a chip, as value and bound.

A captured program is lowered under its policy, and its instructions run on arrays that
carry the scale of every element's error (`diagnostics.tolerance`, which also judges
kernels against NumPy references). `walk.py` goes through the program; `arithmetic`,
`exchange`, `movement`, `orders` and `sums` have the rules of instructions; `held.py`
rounds to formats; `results.py` has the bounds of outputs.

A cast that the policy or the program asks for is executed if its operand is exact. The
bounds cover any order of addition, any table of a function, and one or two roundings.
"""
