"""Running a traced kernel: from `KernelProgram` to one function of arrays.

slots      storages -> places in pool arrays, by live ranges
accesses   an access -> how to slice it (static) and where (integers)
splitting  an instruction -> what is static of it, and a row of integers
rolling    equal neighbours -> loops over tables of rows
steps      one instruction on the pools
running    the loops
eager      the same steps, one by one, as the kernel's Python code runs
"""
