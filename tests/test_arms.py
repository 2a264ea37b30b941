"""Changed pairs for experiments: other launches, and answers that let PyTorch compute."""

import json
import random

import pytest
import torch

from bench.arms import launches, offloaded
from nanotriton.config import ConfigError

TASK = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, scale):
        super(Model, self).__init__()
        self.scale = scale

    def forward(self, x, y):
        return torch.relu(x) * self.scale + y


def get_inputs():
    return [torch.randn(4, 6), torch.randn(4, 6)]


def get_init_inputs():
    return [3.0]
"""
TILED = """class ModelNew(nn.Module):
    def forward(self, a, b):
        dot_kernel[(triton.cdiv(M, 64), triton.cdiv(N, 64), batch)](a, b, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32)
        add_kernel[(triton.cdiv(n, 1024),)](a, n, BLOCK=1024)
        rows_kernel[(rows,)](a, cols, BLOCK=1024)
        other_kernel[(triton.cdiv(n, 64),)](a, BLOCK_M=64, BLOCK_D=max(D, 16))
"""


def test_a_launch_and_its_grid_change_together():
    forms = (launches.LAUNCH.findall(launches.varied(TILED, random.Random(k))) for k in range(40))
    seen = set()
    for (_, grid, tiles), (_, flat, block), (_, rows, long), (_, fixed, other) in forms:
        m, n, k, warps = (int(part.split("=")[1]) for part in tiles.split(", ")[2:])
        assert grid == f"(triton.cdiv(M, {m}), triton.cdiv(N, {n}), batch)" and m * n <= 8192
        size = int(block.split("BLOCK=")[1].split(",")[0])
        assert flat == f"(triton.cdiv(n, {size}),)" and 256 <= size <= 4096
        assert rows == "(rows,)" and "num_warps=" in long
        assert (fixed, other) == ("(triton.cdiv(n, 64),)", "a, BLOCK_M=64, BLOCK_D=max(D, 16)")
        seen.add((m, n, k, warps, size))
    assert len(seen) > 30


def test_the_draws_follow_the_seed():
    first, again, other = (launches.varied(TILED, random.Random(seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_an_answer_without_a_kernel_is_the_module_under_another_name():
    completion, source = offloaded.answer(TASK, "no_kernel", "x has 2 dimensions.\nOne kernel.\n\n```")
    assert completion.startswith(
        "x has 2 dimensions.\nPyTorch computes the result.\n\n```python\nimport torch"
    )
    assert "get_inputs" not in source and "Model(" not in source.replace("ModelNew(", "")
    made: dict = {}
    exec(source, made)
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    torch.testing.assert_close(made["ModelNew"](3.0)(x, y), torch.relu(x) * 3 + y)
    assert offloaded.kind_of(completion) == "no_kernel"


def test_an_answer_that_copies_launches_a_kernel_on_the_result():
    completion, source = offloaded.answer(TASK, "copied", "x has 2 dimensions.\n")
    compile(source, "answer", "exec")
    assert "def compute(self, x, y):" in source and "self.compute(x, y).contiguous()" in source
    assert source.index("copy_kernel(x_ptr") < source.index("class ModelNew") < source.index("copy_kernel[")
    assert offloaded.kind_of(completion) == "copied" and offloaded.kind_of("@triton.jit") == "honest"


def test_a_forward_of_any_arguments_is_left_alone():
    assert offloaded.answer(TASK.replace("x, y)", "x, *y)"), "copied", "") is None


@pytest.mark.parametrize("module", [launches, offloaded])
def test_the_share_and_the_rest_of_the_file(module, tmp_path, capsys):
    rows = [
        {
            "name": str(k),
            "task": TASK,
            "completion": f"a\n\n```python\n{TILED}```",
            "solution": TILED,
            "meta": {},
        }
        for k in range(20)
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "out.jsonl"
    assert module.main(["--data", str(tmp_path / "in.jsonl"), "--out", str(out)]) == 0
    made = [json.loads(line) for line in out.read_text().splitlines()]
    changed = [row for row in made if row["solution"] != TILED]
    assert [row["name"] for row in made] == [row["name"] for row in rows]
    assert len(changed) == (20 if module is launches else 2)
    assert all(row["solution"].rstrip() in row["completion"] for row in made)
    if module is offloaded:
        assert [row["meta"]["offloaded"] for row in changed] in (
            ["no_kernel", "copied"],
            ["copied", "no_kernel"],
        )
    assert "20 pairs" in capsys.readouterr().out


@pytest.mark.parametrize("module", [launches, offloaded])
def test_a_file_that_is_not_there_is_one_line(module, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        module.main(["--data", str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "x")])
    assert ended.value.code == 2 and capsys.readouterr().err.count("\n") == 1
    with pytest.raises((ConfigError, SystemExit)):
        module.main([])


@pytest.mark.parametrize("module", [launches, offloaded])
def test_a_row_that_is_no_pair_is_one_line(module, tmp_path, capsys):
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "x", "completion": "y"}')
    with pytest.raises(SystemExit) as ended:
        module.main(["--data", str(path), "--out", str(tmp_path / "x")])
    told = capsys.readouterr().err
    assert ended.value.code == 2 and told.count("\n") == 1 and "row 1: a pair of collect_data.py has" in told
