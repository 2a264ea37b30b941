"""How fast is torch.compile on a problem's own module? A property of (task, GPU): measured once, kept in a file, used by every run beside it.

Measured in a trusted process that sees no candidate, with the executor's stopwatch and under its lock on the GPU: default mode of torch.compile, torch's
default precision, constructed and called as KernelBench does (no eval(), no gradients), compilation not counted, cold caches, median.
The file is compiled.<card>.jsonl in the folder of --out: {"task": key, "torch": version, "us", "eager_us"} or {..., "error"} a line.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from bench.helper import Helper, serve
from nanotriton import log
from nanotriton.executor.common.construct import seed_everything
from nanotriton.executor.gpu.timing import Work
from nanotriton.plan.trees import leaves
from nanotriton.tasks.task import Task

SECONDS = 600.0  # for one task, compilation included
DRAWS = 3  # of inputs, that timed runs take in turns


def times(
    tasks: Sequence[Task], folder: Path, device: int = 0, helper: Helper | None = None
) -> dict[str, dict]:
    """{task's key: {"us", "eager_us"} or {"error"}}, from the file of this card in `folder` or measured now (and added to it)."""
    card = torch.cuda.get_device_name(device) if torch.cuda.is_available() else "cpu"
    path = folder / f"compiled.{'-'.join(card.split())}.jsonl"
    known = read(path)
    missing = [t for t in {t.key: t for t in tasks}.values() if t.key not in known]
    with helper or Helper("bench.compiled", SECONDS) as asked:
        for task in log.bar(missing, desc="torch.compile") if missing else ():
            line = {"task": task.key, "name": task.name, "torch": torch.__version__} | asked.ask(
                {"source": task.source, "device": device}
            )
            with open(path, "ab") as file:  # one write a line: other ranks append too
                file.write(json.dumps(line).encode() + b"\n")
            known[task.key] = line
    return {t.key: known[t.key] for t in tasks}


def read(path: Path) -> dict[str, dict]:
    """The lines measured with this torch. Half a line (a run was killed) is skipped, and measured again."""
    known = {}
    for text in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            line = json.loads(text)
            if line["torch"] == torch.__version__ and ("us" in line or "error" in line):
                known[line["task"]] = line
        except (ValueError, KeyError, TypeError):
            continue
    return known


# ---- in the trusted process ----


def measure(source: str, stopwatch, device: str = "cuda", compiler: Callable = torch.compile) -> dict:
    """{"us", "eager_us", "clock"} of a task's module, compiled and eager in turns. stopwatch: has the `time` of timing.Stopwatch."""
    names: dict = {"__name__": "task"}
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file, torch.no_grad():
        file.write(source)  # where the compiler can read it back
        file.flush()
        with torch.device(device):  # not while it compiles: that would be traced too
            exec(compile(source, file.name, "exec"), names)
            seed_everything(0)
            model = names["Model"](*names["get_init_inputs"]()).to(device)
            place, *draws = (list(names["get_inputs"]()) for _ in range(1 + DRAWS))
        fast = compiler(model)

        def before(i: int) -> None:
            for (_, into), (_, fresh) in zip(leaves(place), leaves(draws[i % DRAWS]), strict=True):
                if isinstance(into, torch.Tensor):
                    into.copy_(fresh)

        for _ in range(3):
            fast(*place)  # compiles, and settles what the first calls still find out
        found, eager = stopwatch.time(
            [Work(lambda: fast(*place), before), Work(lambda: model(*place), before)], budget=2.0
        )
    return {"us": found.us, "eager_us": eager.us, "clock": found.clock}


class Quiet:
    """A stopwatch that has the GPU to itself while it runs."""

    def __init__(self, device: int):
        from nanotriton.executor.gpu.ask import describe
        from nanotriton.executor.gpu.gpu import Gpu

        torch.cuda.set_device(device)
        self.folder = tempfile.TemporaryDirectory()
        # For its lock and its stopwatch: no kernel of a candidate comes here.
        self.gpu = Gpu(f"{self.folder.name}/cubins", tempfile.gettempdir(), describe(device))
        torch.backends.cudnn.allow_tf32 = True  # torch's default, which judging turns off

    def time(self, works: list[Work], budget: float) -> list:
        with self.gpu.turns.quiet():
            return self.gpu.watch.time(works, budget)


def answer(request: dict, quiet: list[Quiet] = []) -> dict:  # noqa: B006 (one for the life of the process)
    if not quiet:
        quiet.append(Quiet(request["device"]))
    with quiet[0].gpu.busy():
        try:
            return measure(request["source"], quiet[0])
        finally:
            torch.compiler.reset()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    serve(answer)
