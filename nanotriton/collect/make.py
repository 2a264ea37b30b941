"""One job, one candidate: what the processes of the pool run. A job is data, and so is its result; nothing
here is executed on values.
"""

import ast
import contextlib
import multiprocessing
import os
import random
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field

from nanotriton.collect.compose.compose import compose
from nanotriton.collect.compose.ir import Unfit
from nanotriton.collect.compose.reasoning import reasoning
from nanotriton.collect.fingerprint import Fingerprint, calls, digest, fingerprint, ngrams
from nanotriton.collect.grammar.grammar import draw
from nanotriton.collect.sources import fitted, small
from nanotriton.executor.sandbox.sandbox import die_with_parent
from nanotriton.tasks.task import Task

LIMIT = 40  # seconds of CPU time for one module
LATE = f"not made after {LIMIT} s"


@dataclass
class Candidate:
    """A module with what one route made of it. `status` says how far it came: "emitted", "unfit", later what
    the filters and the executor said.
    """

    key: str
    source: str  # as a model is shown it
    module: str = ""  # sha256 of the module's text as it came; "" for a draw of the grammar
    small: str = ""  # the same with sizes that are verified quickly
    solution: str = ""
    reasoning: str = ""
    status: str = "emitted"
    message: str = ""
    seconds: float = 0.0  # of CPU time, to make it
    meta: dict = field(default_factory=dict)


class Late(BaseException):
    """A module takes too long; no `except Exception` on the way may hold it up."""


def pool(workers: int) -> ProcessPoolExecutor:
    """Processes for `make`. They end with this one, however it ends.

    They are started anew: a fork of a process with the executor's thread could hang.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, die_with_parent, (os.getpid(),))


def make(job: dict) -> dict:
    """job: {"key", "route", and "seed" (a grammar's draw) or "task"} -> a Candidate as a dict, with the
    fingerprint of its module if the job asks for it. "elements", of a job for a GPU: with how many of them at
    most it is verified there; 0: with as many as it has.
    """
    start = time.process_time()
    if "seed" in job:
        made = drawn(job)
        known = fingerprint(made.source) if job.get("fingerprint") else None
    else:
        made, known = given(job)
    made.meta.setdefault("route", job["route"])
    check_python(made)
    made.meta["literals"] = computed_literals(made.source, made.solution) if made.solution else 0
    if (most := job.get("elements")) is not None:
        made.small = fitted(made.source, most) if most else made.source
    made.seconds = round(time.process_time() - start, 3)
    return asdict(made) | {"fingerprint": known if job.get("fingerprint") else None}


def check_python(made: Candidate) -> None:
    """A solution that is no Python is a fault of whoever wrote it: counted, and told by name in the card."""
    try:
        ast.parse(made.solution)
    except SyntaxError as error:
        made.status, made.solution, made.reasoning = "failed", "", ""
        made.message = f"{made.meta['route']} wrote no Python: {error.msg}, line {error.lineno}"


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
    """A module of the grammar. Both texts come from the same draw; a composed solution is made from the large
    one and serves both. A hard one's solution only shows that there is one: it is withheld from the sets.
    """
    draft = draw(random.Random(job["seed"]), job.get("hard", False))
    made = Candidate(
        job["key"],
        draft.source(True),
        small=draft.source(False),
        meta={
            "origin": "grammar",
            "draw": job["seed"],
            "family": draft.family,
            "operators": draft.ops,
            "dtype": draft.dtype or "float32",
            "sizes": draft.numbers(),
        },
    )
    if job["route"] == "compile":
        try:
            with limited(LIMIT):
                compile_(made)
        except Late:
            made.status, made.message = "unfit", LATE
    else:
        fill(made, Task(job["key"], made.source))
        only_these_sizes(made, Task(job["key"], made.small))
    made.meta["withheld"] = bool(job.get("hard"))
    return made


def given(job: dict) -> tuple[Candidate, Fingerprint]:
    """A module that came from somewhere, and the fingerprint of its text as it came."""
    task = job["task"]
    text = task["source"]
    made = Candidate(job["key"], text, task["meta"].get("module") or digest(text), text)
    known = Fingerprint(calls(text), (), ngrams(text))  # what needs no execution
    try:
        with limited(LIMIT):
            known = fingerprint(text)
            made.small = task["meta"].get("small") or small(text)
            solve(made, job)
    except Late:
        made.status, made.message = "unfit", LATE
    sizes = {n for shape in known.shapes for n in shape}
    # What a row of candidates.jsonl says of itself holds: it was known better where it was made.
    said = {k: v for k, v in task["meta"].items() if k not in ("small", "module", "route")}
    made.meta = {"operators": list(known.operators), "sizes": sorted(sizes)} | said | made.meta
    return made, known


def solve(made: Candidate, job: dict) -> None:
    """Write the solution by the job's route. A module that brought its Triton along is only verified; a
    teacher is asked later, by the process that can judge.
    """
    if job["task"]["solution"]:
        made.solution = job["task"]["solution"]
        made.meta["route"] = job["task"]["meta"].get("route", "given")
    elif job["route"] == "compile":
        compile_(made)
    elif job["route"] == "compose":
        fill(made, Task(job["key"], made.source))
        only_these_sizes(made, Task(job["key"], made.small))


def compile_(made: Candidate) -> None:
    """Have Inductor write the solution.

    What weights fix is a number in its text, so it serves the small sizes alone.
    """
    from nanotriton.collect.compile.inductor import compiled

    made.source = made.small
    try:
        made.solution = compiled(Task(made.key, made.source))
    except Unfit as error:
        made.status, made.message = "unfit", str(error)[:200]
    except Exception as error:
        made.status, made.message = "failed", f"{type(error).__name__}: {error}"[:200]


def only_these_sizes(made: Candidate, other: Task) -> None:
    """A solution is dropped if the same module with other sizes, `other`, gets other numbers: one then comes
    from the sizes, and it is wrong where they are not these. Otherwise the texts may differ: large tensors
    need offsets of 64 bits, and what is done along a dimension of one element is nothing.
    """
    if not made.solution or made.source == made.small:
        return
    again = Candidate(made.key, other.source)
    fill(again, other)
    if again.status != made.status or from_sizes(made, again):
        made.status, made.message = "unfit", "its text depends on the sizes"
        made.solution = made.reasoning = ""


def from_sizes(made: Candidate, again: Candidate) -> set[float]:
    """The numbers that one of two solutions has, but neither the other, the module's class, nor an operator's
    definition.
    """
    if again.solution == made.solution:
        return set()
    classes = [n for n in ast.parse(made.source).body if isinstance(n, ast.ClassDef)]
    known = {0, 1, 2, 3, 6, 0.5, 100} | DEFINING | {n for c in classes for n in literals(ast.unparse(c))}
    return (numbers(made.solution) ^ numbers(again.solution)) - known


def fill(made: Candidate, task: Task) -> None:
    try:
        composed = compose(task)
    except Unfit as error:
        made.status, made.message = "unfit", str(error)[:200]
        return
    except Exception as error:
        # our own fault, and one module of thousands: counted, and told by name in the report
        made.status, made.message = "failed", f"{type(error).__name__}: {error}"[:200]
        return
    made.solution, made.reasoning = composed.source, reasoning(composed)
    made.meta["kernels"] = len(composed.stages)


SIZES_OF_BLOCKS = {2**i for i in range(4, 12)}


def computed_literals(source: str, solution: str) -> int:
    """How many numbers stand in a solution that neither the task has nor a block's size, an operator's
    definition or counting explains.
    """
    known = numbers(source) | {0, 1, 2, -1, 0.5, 3, 6, 100, 127} | SIZES_OF_BLOCKS | DEFINING
    return sum(n not in known and -n not in known for n in literals(solution))


# Constants of operators' own definitions: GELU's, SELU's, pi, default epsilons, slopes and momenta.
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
    0.1,
    0.9,
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
