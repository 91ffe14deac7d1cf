"""Every result that a program may legally have on a chip, as a value and a bound.

A captured program is lowered under its policy, and its instructions are run on arrays
that carry the scale of every element's error (`diagnostics.tolerance`, which the judge
of kernels uses on NumPy references): `walk.py` goes through the program, `arithmetic`,
`movement`, `orders` and `sums` say what an instruction makes of
values and errors, `held.py` how a format rounds, `results.py` what the outputs may be.

Casts that the policy or the program asks for are part of the question: a number without
an error is cast, not bounded. Orders of addition, tables of functions, and whether a
result is rounded once or twice are not.
"""
