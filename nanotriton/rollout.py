"""Tasks in, judged samples out: the sampler writes candidates and the executor runs them at the same time."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain

from nanotriton import log
from nanotriton.config import ConfigError
from nanotriton.executor.executor import Executor
from nanotriton.rules.extract import extract_candidate, opened_reasoning
from nanotriton.sampler.sampler import Request, Sample, Sampler
from nanotriton.tasks.prompt import DEFAULT, Prompt, build_prompt, text_of
from nanotriton.tasks.task import Task
from nanotriton.transformer.tokenizer import Tokenizer
from nanotriton.verdict import Verdict


@dataclass
class Episode:
    """One sampled completion, with its verdict, reward and advantage as they become known."""

    task: Task
    prompt_ids: list[int]
    ids: list[int]  # the sampled tokens, end token included
    logprobs: list[float]  # of each sampled token, under the distribution it was drawn from
    finish_reason: str  # "stop" or "length"
    old: list[float] | None = None  # the trainer's logprobs of them, where a mismatch correction needs them
    # their text without the end token, behind the <think> that the chat template opened, if it did
    completion: str = ""
    candidate: str | None = None
    verdict: Verdict = field(default_factory=lambda: Verdict("no_code"))
    pending: Future[Verdict] | None = None  # the executor's, while the verdict is on its way
    # the place of its task in the step's batch, over all ranks: samples of one group are compared
    group: int = 0
    reward: float | None = None  # None: the sample leaves the batch
    parts: dict[str, float] = field(default_factory=dict)  # named parts of the reward, if it has any
    advantage: float = 0.0
    spread: bool = False  # the group has rewards that differ
    taught: bool = False  # it has a policy term: its group has spread, or, for rejection, it is paid

    def row(self, step: int, split: str) -> dict:
        """The row that samples.jsonl keeps.

        The candidate is nanotriton.rules.extract's of the completion; Verdict(**row["verdict"]) is the
        verdict.
        """
        return {
            "step": step,
            "split": split,
            "group": self.group,
            "task": self.task.name,
            "task_source": self.task.source,
            "completion": self.completion,
            "verdict": self.verdict.brief(),
            "finish_reason": self.finish_reason,
            "tokens": len(self.ids),
            "reward": self.reward,
            **({"parts": self.parts} if self.parts else {}),
            "advantage": self.advantage,
        }


def prompts_of(
    tasks: Sequence[Task], tokenizer: Tokenizer, longest: int, prompt: Prompt = DEFAULT
) -> list[list[int]]:
    """The token ids that a model is shown for each task.

    ConfigError for a prompt that leaves no room for an answer in the `longest` tokens of a model.
    """
    prompts = [build_prompt(task, tokenizer, prompt) for task in tasks]
    for task, ids in zip(tasks, prompts):
        if len(ids) >= longest:
            raise ConfigError(
                f"task {task.name}: its prompt of {len(ids)} tokens leaves no room for an answer "
                f"in the model's {longest}"
            )
    return prompts


def rollout(
    tasks: Sequence[Task],
    n: int,
    sampler: Sampler,
    executor: Executor,
    tokenizer: Tokenizer,
    *,
    seeds: Sequence[Sequence[int]],
    temperature: float = 1.0,
    max_tokens: int = 256,
    prompt: Prompt = DEFAULT,
    desc: str = "sampling",
    draw: str | None = None,
) -> list[list[Episode]]:
    """Sample `n` completions of every task, and hand each to the executor -> [len(tasks)][n] episodes.

    Their verdicts are there after judged().

    A finished sample goes to the executor at once, so that execution hides behind decoding; where candidates
    are timed it waits until the sampler has left the GPU. `seeds[i][j]` draws sample j of task i. `prompt` is
    how tasks are put to the model. With a `draw` all samples of a task are judged on the same inputs
    (Executor.submit).
    """
    stop, longest = frozenset(tokenizer.eos_ids), sampler.config.max_position_embeddings
    prompts = prompts_of(tasks, tokenizer, longest, prompt)
    opened = [opened_reasoning(text_of(prompt.of(task.source), tokenizer)) for task in tasks]
    requests = []
    for ids, own_seeds in zip(prompts, seeds):
        room = min(max_tokens, longest - len(ids))
        requests.append(Request(ids, n, room, temperature, stop_ids=stop, seeds=list(own_seeds)))
    episodes: dict[tuple[int, int], Episode] = {}
    waiting: list[Episode] = []
    progress = log.bar(total=n * len(tasks), desc=desc)

    def finished(sample: Sample) -> None:
        """A sample becomes an episode, and its candidate goes to the executor."""
        i = sample.request
        episode = Episode(tasks[i], prompts[i], sample.ids, sample.logprobs, sample.finish_reason)
        ended = sample.finish_reason == "stop"  # by an end token, which is not part of the text
        episode.completion = opened[i] + tokenizer.decode(sample.ids[:-1] if ended else sample.ids)
        episode.candidate = extract_candidate(episode.completion)
        episodes[i, sample.index] = episode
        progress.update()
        if episode.candidate is None:
            episode.verdict = Verdict("no_code", "extract", "no fenced Python block defines ModelNew")
        elif executor.time:
            waiting.append(episode)
        else:
            episode.pending = executor.submit(episode.task, episode.candidate, draw)

    with progress:
        if not executor.time:
            executor.expect(tasks)
        sampler.generate(requests, on_finish=finished)
        for episode in waiting:
            episode.pending = executor.submit(episode.task, episode.candidate, draw)
    return [[episodes[i, j] for j in range(n)] for i in range(len(tasks))]


def judged(groups: list[list[Episode]]) -> list[list[Episode]]:
    """The same episodes when all verdicts are there."""
    pending = [episode for episode in chain(*groups) if episode.pending is not None]
    with log.bar(total=len(pending), desc="judging") as progress:
        for episode in pending:
            episode.verdict, episode.pending = episode.pending.result(), None
            progress.update()
    return groups


def of_groups(episodes: list[Episode], groups: list[int]) -> list[Episode]:
    """The episodes of these groups, group by group."""
    by_group: dict[int, list[Episode]] = {number: [] for number in groups}
    for episode in episodes:
        if episode.group in by_group:
            by_group[episode.group].append(episode)
    return list(chain(*by_group.values()))
