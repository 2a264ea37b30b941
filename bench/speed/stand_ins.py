"""What stands in for tokenizer, executor and sampler where a model of random weights is timed.

Such a model samples noise. So a synthetic task's own solution is judged for each sample. As in training, the
samples of a group answer one task. Each names its kernels otherwise, so that it is recorded, compiled and
judged by itself, and every third one is made wrong.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from nanotriton.executor.executor import Executor
from nanotriton.parallel.world import World
from nanotriton.sampler.sampler import Request, Sample, Sampler
from nanotriton.tasks import synthetic
from nanotriton.tasks.task import Task

GROUP = 8  # samples of a prompt
ANSWER = "```python\nimport triton\n\n\nclass ModelNew:\n    pass\n```"  # every sample's text


class StandInTokenizer:
    """Any text is `prompt` random ids, any ids are ANSWER; there is no end token."""

    has_chat_template = False
    reads_source = True
    eos_ids = frozenset()

    def __init__(self, vocab_size: int, prompt: int):
        self.vocab_size, self.prompt = vocab_size, prompt

    def encode(self, text: str) -> list[int]:
        generator = torch.Generator().manual_seed(int(Task("", text).key, 16) % 2**62)
        return torch.randint(self.vocab_size, (self.prompt,), generator=generator).tolist()

    def decode(self, ids: list[int]) -> str:
        return ANSWER


class StandInExecutor:
    """Whatever is submitted for a task, its next (task, candidate) pair is judged.

    pairs: {a prompt's name: those of its samples}, from tasks_and_pairs().
    """

    time = False

    def __init__(self, executor: Executor, pairs: dict[str, Iterator[tuple[Task, str]]]):
        self.executor, self.pairs = executor, pairs

    def expect(self, tasks: list[Task]) -> None:
        self.executor.expect(tasks)

    def submit(self, task: Task, source: str, draw: str | None = None):
        return self.executor.submit(*next(self.pairs[task.name]), draw)


def tasks_and_pairs(
    steps: int, prompts: int, size: str
) -> tuple[list[Task], dict[str, Iterator[tuple[Task, str]]]]:
    """(the prompts of all steps, {a prompt's name: the GROUP pairs that stand for its samples}).

    size: of the tasks, "cpu" or "gpu".
    """
    tasks = synthetic.generate("rl", steps * prompts, 0, size)
    pairs = {}
    for task in tasks:
        group = [(task, answer(task.solution, j)) for j in range(GROUP)]
        pairs[task.name] = iter(group)
    return tasks, pairs


def answer(solution: str, number: int) -> str:
    """The solution with kernels that no other number has; every third answer stores another value."""
    source = re.sub(r"\bkernel\b", f"kernel_{number}", solution)
    return wrong(source) if number % 3 == 2 else source


def wrong(source: str) -> str:
    """The source with another value stored."""
    return re.sub(r"(tl\.store\(out_ptr[^\n]*?, x)(?=[,)])", r"\1 + 1.0", source)


class RecordedSampler:
    """A sampler whose samples come from a file, by their seeds; if there is none yet, it is written."""

    def __init__(self, sampler: Sampler, path: Path, world: World):
        self.sampler, self.path, self.world = sampler, path, world
        self.known = json.loads(path.read_text()) if path.exists() else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)

    def generate(self, requests: list[Request], on_finish: Callable[[Sample], None]) -> None:
        if self.known is None:
            self.write(requests, self.sampler.generate(requests, on_finish))
            return
        for i, r in enumerate(requests):
            for j, seed in enumerate(r.seeds):
                on_finish(Sample(i, j, *self.known[str(seed)], "length"))

    def write(self, requests: list[Request], groups: list[list[Sample]]) -> None:
        """Write the samples of all ranks: {seed: (ids, logprobs)}."""
        mine = {}
        for request, group in zip(requests, groups, strict=True):
            for seed, sample in zip(request.seeds, group, strict=True):
                mine[str(seed)] = (sample.ids, sample.logprobs)
        every = {}
        for part in self.world.gather(mine):
            every |= part
        if self.world.is_main:
            self.path.write_text(json.dumps(every))
