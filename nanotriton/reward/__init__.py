"""The reward: a verdict becomes a number.

reward.py      how, and with a function of your own
execution.py   what a verdict is worth, part by part
try_out.py     a reward file is tried before anything is trained
audit.py       were the rewards of a run deserved?
adapters.py    the executor as the reward of other trainers
"""
