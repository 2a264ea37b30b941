"""nanotriton: train language models, from scratch and in the open, to write Triton GPU kernels.

    from nanotriton import Executor, Verdict, judge

These names are imported when they are asked for, so that `import nanotriton` takes no torch with it.
docs/library.md shows their use. The training scripts are no part of the package: they run from a checkout.

What lies where:

    the algorithm    grpo.py rollout.py microbatch.py data.py schedule.py trainer.py heldout.py
    the model        transformer/ sampler/ kernels/ vmm.py
    tasks and data   tasks/ collect/ rows.py python_text.py
    judging          executor/ plan/ rules/ reward/ verdict.py
    a run            runs/ parallel/ config.py options.py log.py trackers.py browse/
    other uses       library.py complete.py merge.py search/ endpoint/

Each folder opens with a list of its files. README.md says in which order to read.
"""

import importlib
import os
import platform
import select
import sys
from importlib.util import find_spec
from pathlib import Path


def excepthook(kind: type, error: BaseException, trace) -> None:
    """Neither Ctrl-C nor the end of who reads stdout (`| head`) ends in a traceback.

    That is so in the seconds of the imports too, where Python 3.11 wraps Ctrl-C in a RuntimeError at times.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt | BrokenPipeError):
        cause = cause.__cause__ or cause.__context__
    if cause is None or hasattr(sys, "ps1") or (isinstance(cause, BrokenPipeError) and not unread()):
        sys.__excepthook__(kind, error, trace)


def unread() -> bool:
    """Whether stdout is a pipe that nobody reads any more; what is left in its buffer then goes nowhere."""
    poll = select.poll()
    poll.register(1, 0)
    gone = any(event & select.POLLERR for _, event in poll.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return gone


def is_ours() -> bool:
    """Whether the program is one of this project's, and not somebody's that uses it as a library."""
    package = Path(__file__).resolve().parent
    # the module of `python -m` is still being looked for; its name is there already
    if sys.argv[:1] == ["-m"]:
        module = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
        return module.split(".")[0] in (package.name, "bench")
    program = getattr(sys.modules["__main__"], "__file__", None)
    if program is None:
        return False
    path = Path(program).resolve()
    if path.parent == package.parent:  # a training script. Of an installed package that is no folder of ours
        return (package.parent / "pyproject.toml").is_file()
    return path.is_relative_to(package) or path.is_relative_to(package.parent / "bench")


if is_ours():
    sys.excepthook = excepthook

# The first import of the package is the first line a user sees: say what is supported instead of failing
# later in a wheel.
SUPPORTED = "nanotriton runs on Linux x86-64 with Python 3.11 to 3.14"
if sys.platform != "linux" or platform.machine() != "x86_64":
    raise SystemExit(
        f"{SUPPORTED}; Triton publishes no wheel for {sys.platform} {platform.machine()}: "
        "on Windows use WSL2, on macOS a Linux x86-64 virtual machine or container"
    )
if not (3, 11) <= sys.version_info[:2] <= (3, 14):
    raise SystemExit(f"{SUPPORTED}; this is Python {platform.python_version()}")
if missing := [name for name in ("torch", "triton") if find_spec(name) is None]:
    raise SystemExit(
        f"{SUPPORTED}; {' and '.join(missing)} can't be imported here: pip install -r requirements.txt"
    )

# Read by OpenMP (torch's on Linux is GNU's) when torch is imported: how often a thread looks for the others'
# end before it sleeps. By default it is so often that a training step on two cores, one of which somebody
# else wants too, takes 25 times as long.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# What the package offers as a library: the name, and the module that it comes from.
OFFERED = {
    "Executor": "nanotriton.executor.executor",
    "Task": "nanotriton.tasks.task",
    "Verdict": "nanotriton.verdict",
    "judge": "nanotriton.library",
    "load_task": "nanotriton.tasks.task",
}
__all__ = sorted(OFFERED)


def __getattr__(name: str) -> object:
    if name not in OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(OFFERED[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *OFFERED})
