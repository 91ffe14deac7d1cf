"""The ops and values of two programs that correspond, and those that differ.

`alignment.py` lists the ops of each program, pairs them and classifies the edits,
`changed_attributes.py` describes what changed in an op, `value_runs.py` runs a program
and keeps its values, `correspondence.py` pairs the values of two runs that should be
equal, and `edit_result.py` shows the differences.
"""
