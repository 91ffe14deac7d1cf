"""What the hardware allows, checked while a kernel is traced.

`registry` holds the rules; every other file of this package adds some, by importing
`limit` or `storage_limit` and being listed in `rules`.
"""
