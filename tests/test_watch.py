"""One of several ranks fails: all end soon, and the first one says in a line which and why. No GPU, gloo.

failing_ranks.py is their program, which says what happens to them.
"""

import json
import os
import re
import socket
import subprocess
import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nanotriton.parallel import watch
from nanotriton.parallel.world import gpu_trouble
from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[1]
HOST = re.escape(socket.gethostname())
AGAIN = "; mended, the same command continues"
# what happens -> what the first rank says, the exit statuses, and whose traceback is there
CASES = {
    "both_mistaken": (r"error: --lr: no", [2, 2], []),
    "mistaken": (rf"error: rank 1 \({HOST}\): --tasks /tasks: no such folder", [1, 2], []),
    "broken": (rf"error: rank 1 \({HOST}\): ZeroDivisionError: on purpose", [1, 1], [1]),
    "busy": (
        rf"error: rank 1 \({HOST}\): OutOfMemoryError: CUDA out of memory\. Tried .* 2 GiB",
        [1, 1],
        [1],
    ),
    "killed": (
        rf"error: rank 1 \({HOST}\): it is gone: killed, perhaps for want of memory{AGAIN}",
        [1, -9],
        [],
    ),
    "first": (r"error: ValueError: the executor can't start", [1, 1], [0]),
    "silent": (rf"error: rank 1 \({HOST}\): it has given no sign of life for 3 s{AGAIN}", [1, -9], []),
    "full": (
        rf"error: rank 1 \({HOST}\): /disk/samples\.jsonl can't be written: No space left on device{AGAIN}",
        [1, 1],
        [],
    ),
    "unwritable": (
        rf"error: checkpoint not written, the previous one is whole: checkpoints: rank 1 \({HOST}\): Permission denied",
        [1, 1],
        [],
    ),
    "no_gpu": (rf"error: rank 1 \({HOST}\): its GPU 1 can't be used: CUDA error", [2, 2], []),
    "ends": ("", [0, 0], []),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> dict[str, tuple[list[int], list[str]]]:
    """What happens -> (exit statuses, what each rank said), all of them at the same time."""
    folder = tmp_path_factory.mktemp("ranks")
    names = [*CASES, "killed_first"]
    ports = map(str, free_ports(len(names)))
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    env["MASTER_ADDR"] = "127.0.0.1"
    command = [sys.executable, ROOT / "tests" / "failing_ranks.py", *chain(*zip(names, ports, strict=True))]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    said = lambda name: [(folder / f"{name}-{rank}").read_text() for rank in range(2)]
    return {name: (codes, said(name)) for name, codes in json.loads(done.stdout).items()}


@pytest.mark.parametrize("name", CASES)
def test_all_ranks_end_and_the_first_says_why(ended, name):
    line, codes, tracebacks = CASES[name]
    found, said = ended[name]
    assert found == codes, said
    ours = re.findall(r"^error: .*", said[0], re.MULTILINE)
    assert len(ours) == bool(line) and re.fullmatch(line, "\n".join(ours)), said
    assert "error: " not in said[1], said[1]
    assert [rank for rank in range(2) if "Traceback" in said[rank]] == tracebacks, said


def test_who_has_lost_the_first_rank_says_it_itself(ended):
    codes, said = ended["killed_first"]
    assert codes == [-9, 1]
    assert "error: the first machine can't be reached any more" in said[1] and "Traceback" not in said[1]


def test_a_first_rank_that_is_gone_before_anyone_listens_is_one_line(monkeypatch, capsys):
    def gone():
        raise torch.distributed.DistNetworkError("The client socket has timed out after 60000ms")

    monkeypatch.setattr(watch, "connection", gone)
    world = SimpleNamespace(world_size=2, rank=1, is_main=False, gather=lambda value: [value, value])
    with pytest.raises(SystemExit) as ended:
        watch.Watch().begin(world)
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"error: the first machine can't be reached any more{AGAIN}\n"


def test_a_gpu_that_cannot_be_used_is_one_line(monkeypatch):
    def broken(device):
        raise RuntimeError("CUDA error: device busy\nand much more")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", broken)
    assert gpu_trouble(torch.device("cuda", 1), True) == "its GPU 1 can't be used: CUDA error: device busy"
    assert (
        gpu_trouble(torch.device("cuda", 2), True)
        == "it has no GPU: there are 2, and --nproc-per-node is more"
    )
