"""A kernel for one task: candidates are written and judged, and written again with what was wrong."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from nanotriton.config import ConfigError
from nanotriton.executor.executor import Executor
from nanotriton.log import counted
from nanotriton.rules.extract import extract_candidate
from nanotriton.schedule import Stream, seed_of
from nanotriton.search.writers import Writer, Written
from nanotriton.tasks.prompt import NO_CODE, Prompt, correction, spoken
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict

log = logging.getLogger(__name__)

HEAD = f"{'round':>5}  {'answer':>6}  {'status':<17} {'speed-up':>8}  {'error':>7}  why"


@dataclass(frozen=True)
class Attempt:
    """One answer and what became of it. round and number count from 1; code: its candidate, if it has one."""

    round: int
    number: int
    code: str | None
    verdict: Verdict


def search(
    task: Task,
    opening: Prompt,
    writer: Writer,
    executor: Executor,
    *,
    n: int,
    rounds: int,
    seed: int,
    tell: Callable[[Attempt], None] = lambda attempt: None,
) -> list[Attempt]:
    """All attempts, in order: n conversations, each of at most `rounds` answers.

    A wrong answer is followed by the executor's message, and a right one that was timed by its time. Where
    nothing is timed, a round with a right answer is the last.
    """
    prompts = [opening] * n
    attempts: list[Attempt] = []
    for number in range(1, rounds + 1):
        seeds = [seed_of(seed, Stream.SEARCH, number, 0, k) for k in range(n)]
        try:
            answers = writer.write(prompts, seeds)
        except ConfigError as error:
            if not any_correct(attempts):
                raise
            log.warning("round %d was not written: %s", number, error)
            break  # what was found before is not lost with the server
        codes = [extract_candidate(answer.text) for answer in answers]
        for k, verdict in enumerate(verdicts(task, codes, answers, executor)):
            attempts.append(Attempt(number, k + 1, codes[k], verdict))
            tell(attempts[-1])
            if writer.converses and verdict.scored:
                prompts[k] = following(opening, answers[k].text, said_of(verdict))
        if not executor.time and any_correct(attempts):
            break
    return attempts


def any_correct(attempts: Sequence[Attempt]) -> bool:
    return any(attempt.verdict.correct for attempt in attempts)


def verdicts(
    task: Task, codes: Sequence[str | None], answers: Sequence[Written], executor: Executor
) -> Iterator[Verdict]:
    """The verdict on each answer, in order. They are all judged at the same time."""
    pending = [executor.submit(task, code) if code else None for code in codes]
    for future, answer in zip(pending, answers, strict=True):
        if future is not None:
            yield future.result()
        elif answer.failed:
            yield Verdict("infra_error", "write", answer.error)
        else:
            yield Verdict("no_code", "extract", answer.error or NO_CODE)


# ---- what the writer is told


def said_of(verdict: Verdict) -> str:
    """What the writer of an answer is told of it."""
    if not verdict.correct:
        return correction(verdict.status, verdict.message)
    told = "That is correct."
    if verdict.speedup is not None:
        told += f" It takes {verdict.time_us:.1f} us, and PyTorch {verdict.reference_us:.1f} us."
    return f"{told}\n\nWrite the whole file again, and make it faster."


def following(opening: Prompt, answer: str, said: str) -> Prompt:
    """The prompt for another answer: the opening, the last answer without its reasoning, and what is said.

    Answers before the last are left out, so that a conversation does not outgrow the model.
    """
    return replace(opening, messages=(*opening.messages, ("assistant", spoken(answer)), ("user", said)))


# ---- what came of it


def ranked(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The right ones, the fastest first; those that were not timed in order, behind."""
    right = [attempt for attempt in attempts if attempt.verdict.correct]
    return sorted(right, key=lambda attempt: attempt.verdict.time_us or float("inf"))


def counts(attempts: Sequence[Attempt]) -> str:
    """How many attempts ended how: "7 answers in 2 rounds: 5 wrong_value, 2 correct"."""
    statuses = Counter(attempt.verdict.status for attempt in attempts).most_common()
    rounds = attempts[-1].round if attempts else 0
    listed = ", ".join(f"{count} {status}" for status, count in statuses)
    return f"{counted(len(attempts), 'answer')} in {counted(rounds, 'round')}: {listed}"


def row(attempt: Attempt) -> str:
    """An attempt as a row of the table whose head is HEAD."""
    verdict = attempt.verdict
    speedup = error = ""
    if verdict.correct:  # of a wrong one it would be the error on the inputs on which it was right
        speedup = "" if verdict.speedup is None else f"{verdict.speedup:.2f}x"
        error = "" if verdict.max_error is None else f"{verdict.max_error:.1e}"
    message = " ".join(verdict.message.split())
    place = f"{attempt.round:>5}  {attempt.number:>6}"
    return f"{place}  {verdict.status:<17} {speedup:>8}  {error:>7}  {message}".rstrip()


def kernel_file(attempt: Attempt, notes: Sequence[str]) -> str:
    """The file of a right candidate, to be imported as it is.

    notes: lines about where it comes from. The candidate's text follows unchanged behind the comment.
    """
    verdict = attempt.verdict
    lines = [
        "A Triton kernel in place of a PyTorch module: `ModelNew`, judged correct under policy strict.",
        "",
    ]
    lines += notes
    if verdict.speedup is None:
        lines.append("Speed-up over PyTorch: not measured, which takes a GPU.")
    else:
        times = f"{verdict.time_us:.1f} us against {verdict.reference_us:.1f} us"
        lines.append(f"Speed-up over PyTorch: {verdict.speedup:.2f} ({times}).")
    lines.append(
        f"Largest error: {verdict.max_error or 0.0:.1e} of the root mean square of PyTorch's answer."
    )
    if verdict.unvaried:
        lines.append(f"Not varied by any test, because its inputs never vary: {', '.join(verdict.unvaried)}.")
    comment = "".join(f"# {' '.join(line.split())}".rstrip() + "\n" for line in lines)
    return f"{comment}\n{attempt.code}"
