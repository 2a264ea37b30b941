"""The training benchmark on the CPU: its figures are what it says, and one rank is two."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.speed import stand_ins, training
from nanotriton import config
from nanotriton.executor.executor import Executor
from nanotriton.parallel.world import World
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
TINY = ["--shape", "tiny", "--samples", "16", "--tokens", "12", "--prompt", "20"]


def parse(*argv: str) -> training.Config:
    return config.parse(training.Config, [*TINY, *argv])


def test_flops_are_those_of_the_matrix_products():
    shape = ModelConfig(**training.TINY)
    matrices = [
        p for n, p in Transformer(shape).named_parameters() if p.ndim == 2 and "embed_tokens" not in n
    ]
    products = 6 * sum(p.numel() for p in matrices)
    assert training.flops_per_token(shape, 0) == products
    # queries times keys, and probabilities times values: 2 * 2 * length * 64 a layer, half of it above the
    # diagonal, three times
    assert training.flops_per_token(shape, 1000) - products == 3 * 2 * (2 * 2 * 1000 * 64) / 2
    eight = ModelConfig(**training.MODELS["8b"])
    # tokens/s at 40%
    assert 989.4e12 * 0.4 / training.flops_per_token(eight, 4096) == pytest.approx(8.0e3, rel=0.05)


def test_sft_reports_what_it_ran(capsys, tmp_path):
    row = training.main(
        parse("--what", "sft", "--warmup", "1", "--steps", "1", "--out", str(tmp_path / "x.json")), World()
    )
    assert (
        json.loads((tmp_path / "x.json").read_text()) == row and "tokens_s_per_gpu" in capsys.readouterr().out
    )
    assert (
        row["loss"] == pytest.approx(torch.tensor(512.0).log().item(), rel=0.02)
        and row["norm"] > 0
        and row["mfu"] is None
    )
    assert row["tokens_s_per_gpu"] == pytest.approx(
        row["sequences_per_gpu"] * row["length"] / row["seconds_a_step"], rel=1e-3
    )


def test_given_candidates_are_right_and_two_of_eight_are_wrong():
    tasks, pairs = stand_ins.tasks_and_pairs(1, 2, "cpu")
    assert len(tasks) == 2 and tasks[0].name != tasks[1].name
    with Executor(workers=1) as executor:
        stand_in = stand_ins.StandInExecutor(executor, pairs)
        said = [[stand_in.submit(task, stand_ins.ANSWER) for _ in range(8)] for task in tasks]
        for group in said:
            assert [f.result().status for f in group] == ["correct", "correct", "wrong_value"] * 2 + [
                "correct"
            ] * 2


def test_one_gpu_mode_measures_both_stages():
    row = training.main(parse("--what", "one-gpu"), World())
    assert row["sampler_shares_parameters"] is True and row["sft_loss"] > 0 and row["grpo_norm"] > 0
    parts = [
        row[f"grpo_{p}_s"] for p in ("sample", "reward", "wait", "logprobs", "backward", "optimizer", "sync")
    ]
    assert min(parts) > 0 and sum(parts) == pytest.approx(row["grpo_step_s"], rel=1e-3)
    assert (
        row["grpo_statuses_of_rank_0"] == {"correct": 12, "wrong_value": 4}
        and abs(row["grpo_ratio"] - 1) < 1e-4
    )


def test_a_step_of_one_rank_is_that_of_two(tmp_path):
    one = training.main(
        parse("--what", "compare", "--replay", str(tmp_path / "s.json"), "--out", str(tmp_path / "one.json")),
        World(),
    )
    assert not one["replayed"] and one["reward"] == 0.75 and one["norm_1"] > 0.1
    argv = [
        "--what",
        "compare",
        "--replay",
        str(tmp_path / "s.json"),
        "--against",
        str(tmp_path / "one.json"),
        "--out",
        str(tmp_path / "two.json"),
    ]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "--",
        "bench.speed.training",
        *TINY,
        *argv,
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    two = json.loads((tmp_path / "two.json").read_text())
    assert two["ranks"] == 2 and two["replayed"] and two["other_norm_1"] == one["norm_1"]
    assert two["reward_difference"] == 0 and two["loss_difference"] < 1e-6
    assert two["norm_1_relative_difference"] < 1e-3 and two["norm_2_relative_difference"] < 1e-3


def test_a_number_that_is_no_groups_is_one_line():
    with pytest.raises(config.ConfigError, match="--samples 17: a multiple of 8"):
        training.main(training.Config(samples=17), World())
