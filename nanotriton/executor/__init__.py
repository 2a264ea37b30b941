"""The executor: does a candidate work?

`Executor` judges many candidates at once. `python -m nanotriton.executor` judges a few from a shell. The
files here run in the caller's process and import neither torch nor triton for it; base.py alone is the main
program of another process. The wings:

    sandbox/   processes, and the rights that an untrusted one gives up
    child/     UNTRUSTED: records or runs a candidate
    judge/     trusted: draws inputs, replays, compares, gives the verdict
    replay/    runs a plan; ttir/ evaluates its kernels on a CPU, gpu/ compiles and runs them on a GPU
    common/    code and numbers that several of them need
"""

from nanotriton.executor.executor import Executor
from nanotriton.verdict import Verdict

__all__ = ["Executor", "Verdict"]
