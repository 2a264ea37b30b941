"""The picture of a GRPO run: what it reads, and what it says of a file that is not what it expects."""

import json

import pytest

from bench.channels import learned


def results(path, right: dict[str, list[bool]]) -> str:
    samples = [
        {"problem": name, "sample": i, "verdicts": {"strict": {"status": "correct" if ok else "wrong_value"}}}
        for name, given in right.items()
        for i, ok in enumerate(given)
    ]
    said = {"benchmark": "tasks", "scores": {"strict": {}}, "samples": samples}
    path.write_text(json.dumps(said | {"complete": True}))
    return str(path)


def finished(folder, steps: list[dict]):
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    return folder


def test_groups_are_compared_pair_by_pair_and_drawn(tmp_path, capsys):
    run = finished(
        tmp_path / "grpo",
        [
            {"stage": "sft", "step": 1, "loss": 1.0},
            {"stage": "grpo", "step": 1, "statuses": {"correct": 1, "wrong_value": 3}},
            {"stage": "grpo", "step": 2, "statuses": {"wrong_value": 4}},
        ],
    )
    assert learned.success(run) == [(1, 0.25), (2, 0.0)]
    before = results(
        tmp_path / "a.json",
        {"held_out_shape/x": [True, False], "held_out_shape/y": [False] * 2, "level1/z": [True]},
    )
    after = results(
        tmp_path / "b.json",
        {"held_out_shape/x": [True, True], "held_out_shape/y": [False] * 2, "level1/z": [True]},
    )
    picture = tmp_path / "learned.png"
    learned.main([str(run), "--before", before, "--after", after, "--out", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out.splitlines()
    assert (
        said[0].startswith("held_out_shape: 25.0 -> 50.0, +25.0 [")
        and said[1] == "level1: 100.0 -> 100.0, +0.0"
    )


@pytest.mark.parametrize(
    "steps, files, said",
    [
        ([{"stage": "sft", "step": 1}], 1, "no step of GRPO"),
        ([{"stage": "grpo", "step": 1, "statuses": {"correct": 1}}], 2, "as many are expected"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, capsys, steps, files, said):
    run = finished(tmp_path / "grpo", steps)
    one = results(tmp_path / "a.json", {"level1/z": [True], "level2/z": [True]})
    with pytest.raises(SystemExit):
        learned.main([str(run), "--before", *[one] * files, "--after", one, "--out", str(tmp_path / "x.png")])
    shown = capsys.readouterr().err
    assert said in shown and shown.count("\n") == 1


def test_names_of_groups_are_short():
    assert [learned.label(g) for g in ("1", "level2", "held_out_shape")] == [
        "level 1",
        "KernelBench\nlevel 2",
        "held-out\nshape",
    ]
