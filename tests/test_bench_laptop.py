"""The table and the picture of the laptop run's arms, from folders as runs leave them; every loss with every correction."""

import json

import pytest

import train_sft
from bench.speed import laptop, losses
from nanotriton.parallel.world import World

STEP = {"stage": "grpo", "samples": 4}


def run(root, arm: str, seed: int, right: list[int], **summary) -> None:
    folder = root / f"bench-{arm}-{seed}"
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps(summary | {"seed": seed}))
    rows = [STEP | {"step": i + 1, "statuses": {"correct": n}} for i, n in enumerate(right)]
    rows.insert(0, {"stage": "grpo/test", "step": 0, "success": 0.5})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_table_has_a_line_and_the_picture_a_curve_for_each_arm(tmp_path, capsys):
    numbers = dict(heldout_se_before=0.02, heldout_se_after=0.03, seconds_sft=10.0, seconds_grpo=20.0)
    before = dict(heldout_before=0.4, greedy_before=0.45)
    for seed, after in ((0, 0.7), (1, 0.8)):
        run(tmp_path, "main", seed, [1, 2, 4], heldout_after=after, greedy_after=0.9, **before, **numbers)
    run(tmp_path, "control", 0, [1, 1], heldout_after=0.38, greedy_after=0.41, **before, **numbers)
    run(tmp_path, "sft", 0, [], seconds=30.0)  # its training
    (tmp_path / "bench-sft-0").rename(tmp_path / "moved")
    run(tmp_path, "sft-0", "test", [], success=0.55, success_se=0.02, greedy=0.5, seconds=30.0)
    out = tmp_path / "laptop.json"
    laptop.main(["table", "--root", str(tmp_path), "--out", str(out)])

    lines = capsys.readouterr().out.splitlines()
    assert (
        len(lines) == 2 + 4 and "| SFT, then GRPO | 1 | 0.400 ± 0.020 | 0.800 ± 0.030 | +0.400 |" in lines[3]
    )
    rows = json.loads(out.read_text())["runs"]
    assert [(row["arm"], row["run"]) for row in rows] == [
        ("main", 0),
        ("main", 1),
        ("control", 0),
        ("sft", 0),
    ]
    assert [laptop.after(row, "heldout") for row in rows] == [0.7, 0.8, 0.38, 0.55]
    assert [laptop.after(row, "greedy") for row in rows] == [0.9, 0.9, 0.41, 0.5]
    assert laptop.curves(tmp_path) == {"main": [[0.25, 0.5, 1.0]] * 2, "control": [[0.25, 0.25]]}
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_every_loss_takes_two_steps_with_every_correction(tmp_path):
    sft = train_sft.Config(out=str(tmp_path), steps=2, examples=60, eval_tasks=0, layers=1, width=32)
    model = train_sft.main(sft, World())
    out = tmp_path / "losses.json"
    losses.main(losses.Config(model=model, prompts=2, group=2, max_tokens=6, out=str(out)), World())
    rows = json.loads(out.read_text())["rows"]
    assert len({(row["loss"], row["mismatch"]) for row in rows}) == len(rows) == 25
    assert all(row["finite"] and row["norm_first"] > 0 for row in rows)
    assert all(row["clipped_before_first_update"] == 0 for row in rows)  # in fp32 sampler and trainer agree
