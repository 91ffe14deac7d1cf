"""The quickstart: a GPT, studied natively and on emulated Trainium chips.

`model.py` and `train.py` are the program that a user would write, and `data.py` has the
text that it learns. It uses only the public names of neuronjax, like an application.
"""
