"""The quickstart: one GPT, trained natively and on emulated Trainium chips.

`model.py` and `train.py` are the program a user would write, `data.py` its text;
`experiment.py` runs it once per machine and `report.py` shows what came out. It is an
application: of neuronjax it uses the public names alone.
"""
