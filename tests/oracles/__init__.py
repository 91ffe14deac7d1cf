"""Independent models of the numerics contract, in slow plain NumPy.

Written from sections 4 to 6 of the design and sharing no code with the package: nothing
here imports neuronjax, and sums are Python loops over elementwise `numpy.float32`
operations, whose IEEE rounding NumPy passes through. `same_bits` compares the results.
"""
