"""The executor: does a candidate work? `Executor` judges many at once; `python -m nanotriton.executor`
judges a few from a shell.

Who runs here. The files of this folder run in the process of whoever asks, most often the trainer's: they
start other processes, hand out candidates, kill what is late, and collect verdicts. The wings below say by
their place who runs them:

    child/     UNTRUSTED. A candidate's Python runs here, once. Nothing that comes out is believed.
    judge/     trusted. A worker reads the plan, draws inputs, runs plan and reference, and compares.
    replay/    trusted. A worker carries out a plan on real data.
    gpu/       trusted. TTIR is compiled, kernels are launched and timed, memory is watched.
    ttir/      trusted. TTIR is evaluated where there is no GPU.
    sandbox/   trusted. Children are forked, confined and ended.
    common/    neutral. Both sides need what is here.

What it trusts. It trusts the task's file, which runs in the workers as it stands, and not one byte of a
candidate. `executor.py` imports neither torch nor triton, and no candidate's Python ever runs in its
process. Nothing fails open: where a process dies, hangs or says nothing, that is a verdict.

Who may import it. The trainer, the benchmarks, the audit and you may: `Executor`, `ScriptExecutor` and
`Verdict` are the interface. A benchmark may also import the part that it measures. The executor imports
`rules`, `plan`, `tasks` and `verdict`, and nothing of the training.

    executor.py    Executor: candidates are submitted, and equal ones share a verdict
    supervisor.py  its one thread: it owns all processes, hands out candidates, and handles deaths
    phases.py      is a candidate replayed, run in process mode, or both?
    queue.py       candidates that wait, and which one a worker takes next
    processes.py   how processes are started, what they inherit, and how all of it ends
    base.py        the process that imports torch and triton once and then only forks workers
    preflight.py   can candidates for these tasks be judged at all?
    server.py      an executor that stays warm between commands
    script.py      ScriptExecutor: whole files that run their own tests, as TritonBench's do
    __main__.py    the command line

docs/executor.md tells the whole way of a candidate; docs/journeys.md lists its steps.
"""

from nanotriton.executor.executor import Executor
from nanotriton.verdict import Verdict

__all__ = ["Executor", "Verdict"]
