"""What differs among the releases of NKI, as data, and where a kernel meets it.

`release` lists the releases and `differences.json` the differences, each with its
sources, which `differences` reads; `uses` reads what a kernel's file uses, `traced`
what its instructions do, and `meeting` brings them together.
"""
