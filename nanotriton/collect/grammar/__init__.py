"""The grammar: modules in KernelBench's format are drawn, with their sizes, their wording and their spelling.

grammar.py draws one, of a kind that a share decides. What there is to draw lies in singles.py (one operator),
fused.py (a layer and what follows it), whole.py and loss_modules.py (known by name), and for chains of
operators in chain.py, steps.py, heads.py and windows.py. draft.py has a drawn module before it is a text, and
style.py the hand that it is written in. No Triton is written here.
"""
