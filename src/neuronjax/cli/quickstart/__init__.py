"""The quickstart: a GPT, studied natively and on emulated Trainium chips.

`model.py` and `train.py` are the program that a user would write, and `data.py` has the
text that the model learns. All use only public names of neuronjax.
"""
