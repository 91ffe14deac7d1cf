"""Two programs, as before and after an edit: which op is which, and what differs.

`flattening.py` puts the ops of a program in a row, `alignment.py` pairs two rows and
says what is an edit, `changed_attributes.py` says what of an op was changed,
`value_runs.py` runs both and compares the values of pairs, and `edit_result.py` shows
what was found.
"""
