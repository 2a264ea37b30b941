"""How fast is a problem's own module under torch.compile, and how fast in TF32?

That is a property of the task and the GPU, so it is measured once, kept in a file, and used by every run
beside it.

It is measured in a trusted process, where no candidate ever comes, with the executor's stopwatch and under
the executor's lock on the GPU: torch.compile in its default mode, torch's default precision, constructed and
called as KernelBench does (no eval(), no gradients). The figure is the median with cold caches; compilation
is not counted. In TF32 the module is eager, with torch.set_float32_matmul_precision("high").

The files are compiled.<card>.jsonl and tf32.<card>.jsonl in the folder of --out. A line is
{"task": key, "torch": version, "us", "eager_us"}, or {"task": key, "torch": version, "error"}.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from bench.channels.helper import Helper, serve
from nanotriton import log
from nanotriton.executor.common.construct import seed_everything
from nanotriton.executor.gpu.timing import Work
from nanotriton.plan.trees import leaves
from nanotriton.tasks.task import Task

SECONDS = 600.0  # for one task, compilation included
DRAWS = 3  # of inputs; the timed runs take them in turns


FILES = {"compile": "compiled", "tf32": "tf32"}


def times(
    tasks: Sequence[Task], folder: Path, device: int = 0, helper: Helper | None = None, way: str = "compile"
) -> dict[str, dict]:
    """{task's key: {"us", "eager_us"} or {"error"}}. way: one of FASTER.

    What the file of this card in `folder` lacks is measured now, and added to it.
    """
    card = torch.cuda.get_device_name(device) if torch.cuda.is_available() else "cpu"
    path = folder / f"{FILES[way]}.{'-'.join(card.split())}.jsonl"
    known = read(path)
    missing = {t.key: t for t in tasks if t.key not in known}
    with helper or Helper("bench.channels.compiled", SECONDS) as asked:
        for task in log.bar(missing.values(), desc=f"baseline ({way})") if missing else ():
            about = {"task": task.key, "name": task.name, "torch": torch.__version__}
            line = about | asked.ask({"source": task.source, "device": device, "way": way})
            with open(path, "ab") as file:  # a line is one write, as other ranks append too
                file.write(json.dumps(line).encode() + b"\n")
            known[task.key] = line
    return {t.key: known[t.key] for t in tasks}


def read(path: Path) -> dict[str, dict]:
    """The lines measured with this torch.

    Half a line, which a killed run leaves, is skipped and measured again.
    """
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


def in_tf32(model: Callable) -> Callable:
    """The module with products of float32 matrices in TF32."""

    def fast(*inputs):
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            return model(*inputs)
        finally:
            torch.set_float32_matmul_precision(before)

    return fast


FASTER = {"compile": torch.compile, "tf32": in_tf32}


def measure(source: str, stopwatch, device: str = "cuda", compiler: Callable = torch.compile) -> dict:
    """{"us", "eager_us", "clock"} of a task's module, made faster by `compiler` and as it is, in turns.

    stopwatch: an object with the `time` method of nanotriton.executor.gpu.timing.Stopwatch.
    """
    names: dict = {"__name__": "task"}
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file, torch.no_grad():
        file.write(source)  # into a file, from which the compiler reads it back
        file.flush()
        # The device is the default one while the task makes its tensors. While torch compiles it must not be:
        # setting it would be traced too.
        with torch.device(device):
            exec(compile(source, file.name, "exec"), names)
            seed_everything(0)
            model = names["Model"](*names["get_init_inputs"]()).to(device)
            inputs, *draws = (list(names["get_inputs"]()) for _ in range(1 + DRAWS))
        fast = compiler(model)

        def before(i: int) -> None:
            """Copy draw i into the inputs, whose addresses stay."""
            for (_, into), (_, fresh) in zip(leaves(inputs), leaves(draws[i % DRAWS]), strict=True):
                if isinstance(into, torch.Tensor):
                    into.copy_(fresh)

        for _ in range(3):
            fast(*inputs)  # the first call compiles, and the next ones still find things out
        works = [Work(lambda: fast(*inputs), before), Work(lambda: model(*inputs), before)]
        found, eager = stopwatch.time(works, budget=2.0)
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

    def time(self, works: list[Work], budget: float) -> list:
        with self.gpu.turns.quiet():
            return self.gpu.watch.time(works, budget)


def answer(request: dict, quiet: list[Quiet] = []) -> dict:  # noqa: B006 (one for the life of the process)
    """The figures of one task. request: {"source", "device", "way"}."""
    if not quiet:
        quiet.append(Quiet(request["device"]))
    with quiet[0].gpu.busy():
        try:
            return measure(request["source"], quiet[0], compiler=FASTER[request["way"]])
        finally:
            torch.compiler.reset()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    serve(answer)
