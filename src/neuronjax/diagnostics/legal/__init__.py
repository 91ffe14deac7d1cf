"""Every result that a correct chip may give for a program, as values and error bounds.

A captured program is lowered under its policy, and its instructions run on arrays that
carry the scale of every element's error (`diagnostics.tolerance`, which also judges
kernels against NumPy references). `walk.py` goes through the program; `arithmetic`,
`exchange`, `movement`, `orders` and `sums` have the rules of instructions; `held.py`
has the values with errors; `results.py` has the bounds of outputs.

A cast of an exact operand is executed. Bounds cover the error of every other cast, any
order of addition, the errors of functions, and rounding in one step or in two.
"""
