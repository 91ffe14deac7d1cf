"""The semantics of kernel instructions as pure functions of arrays, one file per kind.

`registry` holds them; `rounding` writes every result.
"""
