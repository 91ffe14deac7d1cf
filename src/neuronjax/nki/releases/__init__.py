"""What differs among the releases of NKI, as data, and where a kernel meets it.

`release` lists the releases, `rows_names` and `rows_rules` the differences with their
sources, `differences` all of them; `uses` reads what a kernel's file uses, `traced`
what its instructions do, and `meeting` brings them together.
"""
