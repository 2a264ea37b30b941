"""--optimizer adam8: one process, bf16 parameters that the sampler reads where they are trained; it learns, and resumes exactly."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import train_grpo
import train_sft
from nanotriton import config
from nanotriton.data import pack, score
from nanotriton.kernels.adam8 import AdamW8bit
from nanotriton.parallel import distributed
from nanotriton.parallel.checkpoint import Checkpointer
from nanotriton.parallel.world import World
from nanotriton.runs.run import make_sampler, sync_weights
from nanotriton.sampler.sampler import Request
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig
from nanotriton.transformer.weights import save_model

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
SFT = [
    "--optimizer",
    "adam8",
    "--steps",
    "6",
    "--examples",
    "200",
    "--layers",
    "2",
    "--width",
    "64",
    "--batch",
    "8",
    "--eval-tasks",
    "2",
    "--eval-every",
    "3",
    "--save-every",
    "2",
    "--max-tokens",
    "24",
]
CONFIG = ModelConfig("qwen3", 48, 32, 48, 3, 4, 2, qk_norm=True)


class Tokens:
    vocab_size = 48


@pytest.fixture
def folder(tmp_path):
    save_model(Transformer(CONFIG).init_weights(seed=1), tmp_path / "model")
    return str(tmp_path / "model")


def test_the_samplers_memory_is_what_kv_gib_says(folder):
    """Half of the memory holds half of the pages."""
    model, model_config = distributed.load(folder, World(), "adam8")
    pages = []
    for gib in (2**-10, 2**-11):
        with make_sampler(model_config, World(), Tokens(), model, kv_gib=gib) as sampler:
            sampler.generate([Request([1, 2, 3], max_tokens=2)])
            pages.append(sampler.kv.pages)
    assert pages[0] > 1 and abs(pages[0] - 2 * pages[1]) <= 2


def test_the_sampler_reads_the_parameters_that_are_trained(folder):
    model, model_config = distributed.load(folder, World(), "adam8")
    optimizer = distributed.adamw(model, 3e-2)
    assert isinstance(optimizer, AdamW8bit) and {p.dtype for p in model.parameters()} == {torch.bfloat16}
    sampler = make_sampler(model_config, World(), Tokens(), model)
    assert all(a is b for a, b in zip(sampler.model.parameters(), model.parameters(), strict=True))
    assert distributed.moments_to_come(optimizer) == 2 * sum(p.numel() for p in model.parameters())
    request = Request([1, 2, 3], n=2, max_tokens=8, seeds=[4, 5])
    addresses = [p.data_ptr() for p in model.parameters()]
    for _ in range(2):
        (samples,) = sampler.generate([request])
        for s in samples:  # what was sampled is scored as it was drawn, before the update and after it
            logp, _ = score(model, pack([(request.prompt_ids, s.ids)]), valid_vocab=48)
            assert torch.allclose(logp, torch.tensor(s.logprobs), atol=1e-5)
        sampler.free()
        before = logp.detach().sum()
        for _ in range(3):
            (-score(model, pack([(request.prompt_ids, samples[-1].ids)]))[0].sum()).backward()
            norm = distributed.clip_grad_norm(model, 0.5)
            grads = torch.cat([p.grad.float().flatten() for p in model.parameters()])
            assert norm.dtype == torch.float32 and grads.norm() == pytest.approx(
                min(0.5, norm.item()), rel=1e-2
            )
            optimizer.step()
            optimizer.zero_grad()
        sync_weights(sampler, model, World())
        assert score(model, pack([(request.prompt_ids, samples[-1].ids)]))[0].sum() > before + 0.5
    assert (
        addresses == [p.data_ptr() for p in model.parameters()]
        and distributed.moments_to_come(optimizer) == 0
    )


def test_a_checkpoint_goes_back_into_the_same_memory(folder, tmp_path):
    model, _ = distributed.load(folder, World(), "adam8")
    optimizer = distributed.adamw(model, 1e-2)
    addresses = [p.data_ptr() for p in model.parameters()]

    def step():
        score(model, pack([([1], [2, 3])]))[0].sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    saver = Checkpointer(tmp_path / "c", World())
    saver.save(1, model, optimizer, {})
    step()
    end = [p.detach().clone() for p in model.parameters()]
    saver.load_latest(model, optimizer)
    assert any(not torch.equal(a, b) for a, b in zip(end, model.parameters()))
    step()
    assert all(torch.equal(a, b) for a, b in zip(end, model.parameters())) and addresses == [
        p.data_ptr() for p in model.parameters()
    ]


@pytest.mark.parametrize("script", [train_sft, train_grpo])
def test_several_processes_are_refused_in_one_line(script, tmp_path):
    cfg = config.parse(script.Config, ["--optimizer", "adam8", "--out", str(tmp_path)])
    with pytest.raises(config.ConfigError, match=r"--optimizer adam8 is for one process .*with 2 use adamw"):
        script.main(cfg, World(world_size=2))
    assert not list(tmp_path.iterdir())


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "train_sft.py", "--out", str(out), *SFT, *more]


def rows(path: Path) -> list[dict]:
    return [
        {k: v for k, v in json.loads(line).items() if k != "seconds"}
        for line in path.read_text().splitlines()
    ]


def test_sft_learns_and_a_killed_run_continues_to_the_same_end(tmp_path):
    straight = subprocess.run(command(tmp_path / "a"), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert straight.returncode == 0, straight.stderr
    losses = [r["loss"] for r in rows(tmp_path / "a/sft/metrics.jsonl") if r["stage"] == "sft"]
    assert losses[-1] < losses[0] - 1
    metrics = tmp_path / "b/sft/metrics.jsonl"
    with subprocess.Popen(command(tmp_path / "b"), cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while not metrics.exists() or '"step": 3' not in metrics.read_text():
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    again = subprocess.run(command(tmp_path / "b"), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0 and re.search("after step [2-5]", again.stdout), again.stdout + again.stderr
    assert rows(tmp_path / "a/sft/metrics.jsonl") == rows(tmp_path / "b/sft/metrics.jsonl")
    assert (tmp_path / "a/sft/model/model.safetensors").read_bytes() == (
        tmp_path / "b/sft/model/model.safetensors"
    ).read_bytes()

    grpo = [
        "--model",
        str(tmp_path / "a/sft/model"),
        "--optimizer",
        "adam8",
        "--steps",
        "1",
        "--prompts",
        "2",
        "--group",
        "2",
        "--lr",
        "1e-3",
        "--eval-tasks",
        "2",
        "--eval-every",
        "1",
        "--max-tokens",
        "24",
        "--kl",
        "0.01",
        "--mismatch",
        "token_truncate",
    ]
    done = subprocess.run(
        [sys.executable, "train_grpo.py", "--out", str(tmp_path), "--name", "g", *grpo],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and (tmp_path / "g/summary.json").exists(), done.stderr
