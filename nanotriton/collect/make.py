"""One job, one candidate: what the processes of the pool run. A job is data, and so is its result; nothing
here is executed on values.
"""

import ast
import contextlib
import random
import re
import signal
import threading
import time
from dataclasses import asdict, dataclass, field

from nanotriton.collect.compose import compose
from nanotriton.collect.fingerprint import fingerprint
from nanotriton.collect.grammar import draw
from nanotriton.collect.ir import Unfit
from nanotriton.collect.reasoning import reasoning
from nanotriton.collect.sources import small
from nanotriton.tasks.task import Task

LIMIT = 40  # seconds of CPU time for one module


@dataclass
class Candidate:
    """A module with what one route made of it. `status` says how far it came: "emitted", "unfit", later what
    the filters and the executor said.
    """

    key: str
    source: str  # as a model is shown it
    small: str = ""  # the same with sizes that a CPU verifies quickly
    solution: str = ""
    reasoning: str = ""
    status: str = "emitted"
    message: str = ""
    seconds: float = 0.0
    meta: dict = field(default_factory=dict)


class Late(BaseException):
    """A module takes too long; no `except Exception` on the way may hold it up."""


def make(job: dict) -> dict:
    """job: {"key", "route", and "seed" (a grammar's draw) or "task"} -> a Candidate as a dict, with its
    source's fingerprint if the job asks for it.
    """
    start = time.monotonic()
    if "seed" in job:
        made = drawn(job)
    else:
        try:
            with limited(LIMIT):
                made = given(job)
        except Late:
            task = job["task"]
            made = Candidate(
                job["key"],
                task["source"],
                task["source"],
                status="unfit",
                message=f"not made after {LIMIT} s",
                meta=dict(task["meta"]),
            )
    made.meta.setdefault("route", job["route"])
    made.meta["literals"] = computed_literals(made.source, made.solution) if made.solution else 0
    made.seconds = round(time.monotonic() - start, 3)
    return asdict(made) | {"fingerprint": fingerprint(made.source) if job.get("fingerprint") else None}


@contextlib.contextmanager
def limited(seconds: int):
    """Late is raised inside after so much CPU time (a machine that is busy is no fault of the module), in a
    process whose main thread this is; in another thread nothing limits.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_):
        raise Late

    old = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)


def drawn(job: dict) -> Candidate:
    """A module of the grammar. Both texts come from the same draw; the solution is composed from the small
    one and serves both.
    """
    draft = draw(random.Random(job["seed"]), job.get("hard", False))
    made = Candidate(
        job["key"],
        draft.source(True),
        draft.source(False),
        meta={
            "origin": "grammar",
            "family": draft.family,
            "operators": draft.ops,
            "dtype": draft.dtype or "float32",
            "sizes": draft.numbers(),
        },
    )
    if not job.get("hard"):
        fill(made, Task(job["key"], made.small))
        only_these_sizes(made, Task(job["key"], made.source))
    return made


def given(job: dict) -> Candidate:
    """A module that came from somewhere. One that brought its Triton along is only verified."""
    task = job["task"]
    meta = task["meta"] | {"sizes": [int(n) for n in re.findall(r"^\w+ = (\d+)$", task["source"], re.M)]}
    made = Candidate(
        job["key"], task["source"], task["meta"].get("small") or small(task["source"]), meta=meta
    )
    if task["solution"]:
        made.solution = task["solution"]
        made.meta.setdefault("route", "given")
    elif job["route"] == "distil":
        pass  # the teacher is asked later, by the process that can judge
    elif job["route"] == "compile":
        from nanotriton.collect.inductor import compiled

        made.source = (
            made.small
        )  # what weights fix is a number in Inductor's text: it serves these sizes alone
        try:
            made.solution = compiled(Task(job["key"], made.source))
        except Unfit as error:
            made.status, made.message = "unfit", str(error)[:200]
        except Exception as error:
            made.status, made.message = "failed", f"{type(error).__name__}: {error}"[:200]
    else:
        fill(made, Task(job["key"], made.source))
        only_these_sizes(made, Task(job["key"], made.small))
    return made


def only_these_sizes(made: Candidate, other: Task) -> None:
    """A solution is dropped if the same module with other sizes, `other`, gets another text: a number in it
    then comes from the sizes, and it is wrong where they are not these.
    """
    if not made.solution or made.source == made.small:
        return
    again = Candidate(made.key, other.source)
    fill(again, other)
    if again.solution != made.solution:
        made.status, made.message = "unfit", "its text depends on the sizes"
        made.solution = made.reasoning = ""


def fill(made: Candidate, task: Task) -> None:
    try:
        composed = compose(task)
    except Unfit as error:
        made.status, made.message = "unfit", str(error)[:200]
        return
    except (
        Exception
    ) as error:  # our own fault, and one module of thousands: counted, and told by name in the report
        made.status, made.message = "failed", f"{type(error).__name__}: {error}"[:200]
        return
    made.solution, made.reasoning = composed.source, reasoning(composed)
    made.meta.setdefault(
        "operators",
        [n.said for s in composed.stages for n in s.nodes if n.said not in ("view", "bias", "affine")],
    )
    made.meta["kernels"] = len(composed.stages)


SIZES_OF_BLOCKS = {2**i for i in range(4, 12)}


def computed_literals(source: str, solution: str) -> int:
    """How many numbers stand in a solution that neither the task has nor a block's size, an operator's
    definition or counting explains.
    """
    known = numbers(source) | {0, 1, 2, -1, 0.5, 3, 6, 100, 127} | SIZES_OF_BLOCKS | DEFINING
    return sum(n not in known and -n not in known for n in literals(solution))


# Constants of operators' own definitions: GELU's, SELU's, pi, default epsilons and slopes.
DEFINING = {
    0.7071067811865476,
    0.7978845608028654,
    1.5957691216057308,
    0.044715,
    1.0507009873554805,
    1.6732632423543772,
    3.141592653589793,
    1e-12,
    1e-08,
    1e-05,
    1e-06,
    0.01,
    20.0,
}


def literals(text: str) -> list[float]:
    tree = ast.parse(text)
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) in (int, float)]


def numbers(text: str) -> set[float]:
    try:
        return set(literals(text))
    except SyntaxError:
        return set()
