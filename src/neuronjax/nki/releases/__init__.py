"""Differences between releases of NKI, as data, and where a kernel depends on them.

`release` lists the releases. `differences.json` lists the differences with their
sources, and `differences` reads it. `uses` finds the names that a kernel's file uses,
`traced` examines its instructions, and `meeting` compares both with the differences.
"""
