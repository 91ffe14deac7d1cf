"""Compute a value and an error bound for everything a program may legally return on a
chip.

A captured program is lowered under its policy, and its instructions run on arrays that
carry the scale of every element's error (`diagnostics.tolerance`, which also judges
kernels against NumPy references). `walk.py` goes through the program; `arithmetic`,
`exchange`, `movement`, `orders` and `sums` have the rules of instructions; `held.py`
rounds to formats; `results.py` has the bounds of outputs.

A cast that the policy or the program asks for is executed when its operand has no
error. Orders of addition, tables of functions, and single or double rounding are free,
so they are bounded.
"""
