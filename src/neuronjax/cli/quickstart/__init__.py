"""The quickstart: one GPT, trained natively and on emulated Trainium chips.

`model.py` and `train.py` are the program a user would write, `data.py` its text;
`experiment.py` runs it once per machine and `report.py` shows what came out, with the
tables of the command and the picture of a study.
"""
