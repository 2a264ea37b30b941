"""Tasks: what a model is asked, from files, benchmarks and a grammar, and how it is asked.

task.py          one task: a PyTorch module in KernelBench's format
module.py        a task made of anybody's file
sets.py          the tasks of a GRPO run, and of each of its steps
pairs.py         the pairs that SFT learns from
prompt.py        what a model is shown, and what it should answer
synthetic.py     tasks drawn from a grammar, each with its solution
grammar.py       the operations of that grammar
teacher.py       a teacher of the grammar that is wrong at times
bpe.py           a tokenizer trained on the spot
kernelbench.py   KernelBench's tasks
tritonbench.py   TritonBench's tasks
"""
