"""The rounds of a search for a kernel: who is told what, when it ends, which is best, and how it is written."""

import dataclasses
from concurrent.futures import Future

import pytest

from nanotriton.config import ConfigError
from nanotriton.search import search
from nanotriton.search.search import Attempt
from nanotriton.search.writers import Written
from nanotriton.tasks.prompt import DEFAULT
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict


class Timing:
    """An executor that times what is right: the verdict is in the candidate."""

    time = True

    def submit(self, task, code):
        done: Future = Future()
        done.set_result(Verdict.from_json(code.splitlines()[0].removeprefix("# ")))
        return done


def fast(us: float) -> Verdict:
    return Verdict("correct", time_us=us, reference_us=10.0, speedup=10.0 / us, max_error=1e-7)


class Scripted:
    """A writer with the verdicts of its answers, round by round."""

    name = "scripted"

    def __init__(self, rounds: list[list[Verdict]], converses: bool = True):
        self.rounds, self.converses, self.asked = rounds, converses, []

    def write(self, prompts, seeds):
        self.asked.append((list(prompts), list(seeds)))
        made = self.rounds[len(self.asked) - 1]
        return [Written(f"```python\n# {verdict.to_json()}\nclass ModelNew: pass\n```") for verdict in made]


def searched(writer, rounds: int) -> list[Attempt]:
    opening = DEFAULT.of("class Model: pass")
    n = len(writer.rounds[0])
    return search.search(Task("t", "s"), opening, writer, Timing(), n=n, rounds=rounds, seed=0)


def test_where_it_is_timed_all_rounds_are_used_and_the_fastest_is_best():
    writer = Scripted(
        [
            [fast(5.0), Verdict("timeout", message="too slow"), Verdict("infra_error")],
            [fast(8.0), fast(2.0), fast(4.0)],
        ]
    )
    attempts = searched(writer, rounds=2)
    assert [(a.round, a.number) for a in search.ranked(attempts)] == [(2, 2), (2, 3), (1, 1), (2, 1)]
    (first, seeds), (second, others) = writer.asked
    assert len({*seeds, *others}) == 6
    said = [prompt.messages[-1][1] for prompt in second]
    assert "It takes 5.0 us, and PyTorch 10.0 us." in said[0] and said[0].endswith("make it faster.")
    assert said[1].startswith("That was judged timeout: too slow") and said[1].endswith("again, corrected.")
    assert second[2] == first[2]  # our failure: the same is asked again
    assert search.counts(attempts) == "6 answers in 2 rounds: 4 correct, 1 timeout, 1 infra_error"
    assert search.counts(attempts[:1]).startswith("1 answer in 1 round: 1 ")
    text = search.row(attempts[3])
    assert text.split() == ["2", "1", "correct", "1.25x", "1.0e-07"]


def test_a_server_that_ends_during_the_search_takes_nothing_with_it(caplog):
    class Ending(Scripted):
        def write(self, prompts, seeds):
            if self.asked:
                raise ConfigError("HTTP 402: no credit")
            return super().write(prompts, seeds)

    (attempt,) = searched(Ending([[fast(5.0)]]), rounds=3)
    assert attempt.verdict.correct and "round 2 was not written: HTTP 402" in caplog.text
    with pytest.raises(ConfigError, match="HTTP 402"):
        searched(Ending([[Verdict("timeout")]]), rounds=3)


def test_a_writer_that_cannot_be_told_is_asked_the_same():
    writer = Scripted([[Verdict("timeout")], [fast(1.0)]], converses=False)
    searched(writer, rounds=2)
    (first, _), (second, _) = writer.asked
    assert first == second and writer.asked[0][1] != writer.asked[1][1]


def test_reasoning_is_not_sent_back():
    opening = DEFAULT.of("x")
    told = search.following(opening, "<think>hm</think>\nThe answer.", "No.")
    assert told.messages[2:] == (("assistant", "The answer."), ("user", "No."))
    for nothing in ("", "<think>never ends"):
        assert search.following(opening, nothing, "No.").messages[2] == ("assistant", "(no answer)")
    assert told.plain == opening.plain


def test_the_header_of_a_timed_kernel():
    verdict = dataclasses.replace(fast(4.0), unvaried=["inputs[1]"])
    text = search.kernel_file(Attempt(1, 2, "x = 1\n", verdict), ["From: here\nand there."])
    lines = text.splitlines()
    assert lines[-1] == "x = 1" and all(line.startswith("#") or not line for line in lines[:-1])
    assert "# From: here and there." in lines
    assert "# Speed-up over PyTorch: 2.50 (4.0 us against 10.0 us)." in lines
    assert "# Largest error: 1.0e-07 of the root mean square of PyTorch's answer." in lines
    assert any("inputs[1]" in line for line in lines)
