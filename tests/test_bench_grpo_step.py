"""The benchmark of a GRPO step beside TRL's runs to its end on a CPU, and its figures are what they say."""

import json

import pytest

pytest.importorskip("trl")

from bench.speed import grpo_step
from nanotriton import config
from nanotriton.parallel.world import World

TINY = ["--shape", "tiny", "--prompts", "2", "--prompt", "8", "--tokens", "6", "--micro", "4", "--steps", "1"]


def test_micro_divides_the_samples(capsys):
    with pytest.raises(SystemExit) as stop:
        config.parse(grpo_step.Config, [*TINY[:-4], "--micro", "5"])
    assert stop.value.code == 2
    assert capsys.readouterr().err == "error: --micro 5: a divisor of the 16 samples is expected\n"


@pytest.mark.slow
def test_all_engines_run_to_their_end(tmp_path):
    out = tmp_path / "step.json"
    report = grpo_step.main(config.parse(grpo_step.Config, [*TINY, "--out", str(out)]), World())
    assert json.loads(out.read_text()) == report
    ours, ahead, trl = report["rows"]
    assert [row["engine"] for row in report["rows"]] == ["ours", "ahead", "trl"]
    assert trl["rollouts"] == "continuous"
    for row in report["rows"]:
        assert row["samples_s"] == pytest.approx(16 / row["step_s"], rel=2e-3)
        assert row["tokens_s"] == pytest.approx(6 * row["samples_s"], rel=2e-3)
        assert 0 < row["peak_gb"] < 8
    parts = ("sample", "reward", "wait", "logprobs", "backward", "optimizer", "sync")
    for row in (ours, ahead):
        assert sum(row[f"{part}_s"] for part in parts) == pytest.approx(row["step_s"], rel=0.1)
