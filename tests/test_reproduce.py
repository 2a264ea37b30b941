"""The hours of docs/reproduce.md are those that follow from the files that it names."""

import json
import re

import pytest

from tests.test_docs import ROOT

PAGE = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
LONGEST, MEAN, PROMPT = 16384, 4096, 1024  # tokens
STEPS, SAMPLES, CARDS = 94, 64 * 8, 8


def result(name: str) -> dict:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def row(name: str, **wanted) -> dict:
    return next(r for r in result(name)["rows"] if all(r[k] == v for k, v in wanted.items()))


def each(name: str) -> float:
    """Seconds a judged candidate."""
    found = result(name)
    return found["seconds"] / found["wanted"]


def hours() -> dict[str, float]:
    """Hours of one card for each part of the table."""
    grpo = result("training_grpo_8b")
    measured = grpo["samples"] * (grpo["prompt"] + grpo["tokens"]) / grpo["ranks"]  # tokens of one card
    tokens = STEPS * SAMPLES * (PROMPT + MEAN)
    per_second = result("executor_h100")["dots"]["per_second"]
    gold = 10 * 184 * each("tritonbench_gold_g") + 10 * 166 * each("tritonbench_gold_t")
    seconds = {
        "SFT": 14000 * 3 * MEAN / result("training_sft_8b")["tokens_s_per_gpu"],
        "GRPO: sampling": STEPS * LONGEST * row("sampling_profile", samples=135)["wall_ms"] / 1e3 * CARDS,
        "GRPO: logprobs and updates": tokens * (grpo["logprobs_s"] + grpo["backward_s"]) / measured,
        "GRPO: the KL's reference": tokens * grpo["logprobs_s"] / measured,
        "GRPO: rewards, if none hides behind sampling": STEPS * SAMPLES / per_second * CARDS,
        "channels: sampling": 600 * 10 * MEAN / row("sampling", shape="8b", load="mixed")["tokens_s"],
        "channels: judging KernelBench": 250 * 10 * each("kernelbench_references"),
        "channels: judging TritonBench": gold,
    }
    return {part: s / 3600 for part, s in seconds.items()}


def test_the_hours_of_the_table_follow_from_the_results():
    table = re.findall(r"^\| ([^|]+) \|[^|]*\| ([\d.]+) \|[^|]*\|$", PAGE, re.MULTILINE)
    told = {part: float(number) for part, number in table}
    expected = hours()
    expected["all"] = sum(expected.values())
    assert told == pytest.approx(expected, abs=0.051)
