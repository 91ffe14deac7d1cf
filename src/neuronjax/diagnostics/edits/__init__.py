"""Two programs side by side: which op and value is which, and what differs.

`alignment.py` puts the ops of each program in a row, pairs the rows and says what is an
edit, `changed_attributes.py` says what of an op was changed, `value_runs.py` runs a
program and keeps its values, `correspondence.py` says which values of two runs both
programs claim to compute, and `edit_result.py` shows what was found.
"""
