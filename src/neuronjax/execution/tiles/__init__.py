"""What instructions compute, as pure functions of arrays: one file per kind.

`registry` holds them; `rounding` is the one write that every result goes through.
"""
