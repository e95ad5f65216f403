"""The tables and figures that `recipes/reproduce.py` makes, a module a paper."""
