"""Draws of inputs that a candidate cannot foresee: the task's own, under stress, and with constants moved.

A task draws one kind of numbers, and a kernel may be right on that kind alone. What is drawn here is what a
right kernel must bear, and what no candidate can foresee.

    draws.py       the task's own draws, distorted as they are made
    stress.py      what is done to them: the table of stress kinds, and their steps
    seeds.py       seeds that a task sets, replaced by ours
    literals.py    numbers of a task's text at which its answer may jump
    kinds.py       under which stress kinds a candidate of a task is judged: the table of trials
    moves.py       ways to move arguments that are the same in every draw
    structure.py   ways to move arguments that are drawn with a structure: distinct, sorted, symmetric
    marks.py       integers that stand for none among ids: an ignore_index, a padding id
"""
