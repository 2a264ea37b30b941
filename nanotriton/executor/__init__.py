"""The executor: does a candidate work? `Executor` judges many at once; `python -m nanotriton.executor` judges a few from a shell."""

from nanotriton.executor.executor import Executor
from nanotriton.verdict import Verdict

__all__ = ["Executor", "Verdict"]
