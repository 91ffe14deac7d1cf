"""The quickstart: one GPT, studied natively and on emulated Trainium chips.

`model.py` and `train.py` are the program a user would write, `data.py` its text. It is
an application: of neuronjax it uses the public names alone.
"""
