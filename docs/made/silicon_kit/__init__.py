"""The kit of `neuronjax silicon-kit`: what makes the archive that the package carries.

probes        what is asked, as data        kernel_text   kernels of it
files/        the rest of the kit           kit           puts it together
"""
