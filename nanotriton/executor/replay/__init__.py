"""Replay: a plan is carried out on real data. The code is trusted; the data that steers it is a stranger's.

Who runs here. A worker does. For every run it takes fresh memory, poisons it, puts inputs and weights in
place, and goes through the plan's steps: ATen calls from a closed list, and launches of kernels.

What it trusts. It trusts the form of a validated plan (`Plan.validate`) and no more: every tensor lies in
its storage, every operator is on the list, every argument fits the kernel's signature. What the kernels
then do is caught by memory that can be checked: exact bounds on the CPU, guard zones on a GPU.

Who may import it. `judge` may, to run plans, and `gpu`, whose backend the replayer drives. It imports
`plan`, `verdict`, `executor.common` and `executor.ttir`. It knows no reference and no tolerance.

    replayer.py    Replay: load, execute, outputs
    memory.py      a plan's storages and tensors, what they begin with, and results that stay torch's
    backend.py     memory and kernels of a device; the CPU's
    poison.py      what memory holds before anybody has written to it
    unread.py      the elements that a run on the CPU never looked at
    tuning.py      what an autotuner's runs leave in memory, before the run that counts
    asking.py      what the evaluator sees of a plan that a GPU runs
    operators.py   how an ATen operator is run: into which memory, with which of torch's kernels
"""
