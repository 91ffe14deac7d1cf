"""Running a traced kernel: from `KernelProgram` to one function of arrays.

slots      storages -> places in pool arrays, by live ranges
accesses   an access -> a static slice and the integers that say where it starts
splitting  an instruction -> a static part and a row of integers
rolling    equal neighbours -> loops over tables of rows
steps      one instruction on the pools
running    the loops
eager      the same steps, one by one, while the kernel's Python code runs
"""
