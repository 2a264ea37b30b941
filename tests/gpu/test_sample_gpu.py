"""sample.py on a GPU: right candidates are timed, the fastest is written, and its header has the speed-up."""

import re

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

import sample
from nanotriton.parallel.world import World
from tests.test_collect_distil import Server
from tests.test_sample import KERNEL

MODULE = """\
import torch
from torch import nn


class Shifted(nn.Module):
    def forward(self, x):
        return torch.sin(torch.cos(x * 2 + 3.0))


example_inputs = (torch.randn(1024, 4096),)
"""
FAST = "tl.sin(tl.cos(x * 2 + 3.0))"


def test_the_fastest_is_written_with_its_speedup(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MODULE)

    def teacher(messages):
        return f"```python\n{KERNEL.replace('64', '1024').format(formula=FAST)}```"

    server = Server(teacher)
    cfg = sample.Config(
        file=str(tmp_path / "mine.py"),
        endpoint=server.url,
        served_model="m",
        out=str(tmp_path / "best.py"),
        device="cuda",
        n=2,
        rounds=2,
    )
    assert sample.main(cfg, World(device=torch.device("cuda"))) == 0
    server.shutdown()
    out, text = capsys.readouterr().out, (tmp_path / "best.py").read_text()
    assert len(server.seen) == 4 and "make it faster" in server.seen[-1][-1]["content"]
    assert re.search(r"correct +\d+\.\d\dx", out)
    assert re.search(r"# Speed-up over PyTorch: \d+\.\d\d \([\d.]+ us against [\d.]+ us\)", text)
    assert torch.cuda.get_device_name() in text
