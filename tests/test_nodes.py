"""Two machines, which are two agents of torchrun on one: they train as one does, and neither outlives the other."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nanotriton.parallel.watch import AGAIN
from tests.ports import free_port
from tests.test_train import ROOT, processes

RUNS = {
    "sft": "train_sft.py --steps 3 --examples 100 --eval-tasks 0 --save-every 1",
    "grpo": "train_grpo.py --sft-steps 3 --sft-examples 100 --steps 3 --prompts 2 --group 2 --eval-tasks 2 "
    "--max-tokens 8 --save-every 1",
}
GONE = f"error: rank 1 ({socket.gethostname()}): it is gone: killed, perhaps for want of memory{AGAIN}"
AGENT = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]


def start(stage: str, out: Path, nodes: int) -> list[subprocess.Popen]:
    """A run on two ranks in all: of one agent, or of two that meet on the loopback.

    What an agent and its ranks print is the file agent-N of `out`.
    """
    layout = ["--standalone"]
    if nodes == 2:
        layout = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}"]
    command = [*AGENT, str(2 // nodes), *layout, *RUNS[stage].split(), "--out", str(out)]
    env = os.environ | {"NANOTRITON_TEST": str(out), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    out.mkdir(exist_ok=True)
    return [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdout=open(file, "w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        for file in outputs(out, nodes)
    ]


def outputs(out: Path, nodes: int) -> list[Path]:
    return [out / f"agent-{k}" for k in range(nodes)]


def end(agents: list[subprocess.Popen], out: Path) -> list[int]:
    """The exit statuses of all agents, when nothing of the run is left."""
    try:
        statuses = [agent.wait(timeout=900) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    due = time.monotonic() + 15
    while processes(out) and time.monotonic() < due:
        time.sleep(0.1)
    assert processes(out) == []
    return statuses


def kill_second_rank(agents: list[subprocess.Popen], out: Path, stage: str, step: int) -> str:
    """kill -9 the second rank when this step is in the metrics -> what the first one's agent printed."""
    files = outputs(out, 2)
    due = time.monotonic() + 900
    while not has_step(out, stage, step):
        assert time.monotonic() < due and all(agent.poll() is None for agent in agents), files[0].read_text()
        time.sleep(0.02)
    first = next(k for k in range(2) if "it begins" in files[k].read_text())
    agent = agents[1 - first].pid
    (rank,) = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    os.kill(int(rank), signal.SIGKILL)
    assert all(status != 0 for status in end(agents, out))
    return files[first].read_text()


def has_step(out: Path, stage: str, step: int) -> bool:
    """Whether this step of this stage is in a whole row of metrics."""
    lines = [
        line for file in out.rglob("metrics.jsonl") for line in file.read_text().splitlines(keepends=True)
    ]
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return any(row["stage"] == stage and row["step"] == step for row in rows)


def errors(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith("error: ")]


def trace(out: Path) -> dict[str, object]:
    """What a run has left: every row of metrics without its times, and the weights of every model."""
    found: dict[str, object] = {}
    for file in out.rglob("metrics.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        found[str(file.relative_to(out))] = [row | {"seconds": None} for row in rows]
    for file in out.rglob("model/*.safetensors"):
        found[str(file.relative_to(out))] = file.read_bytes()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("stage", RUNS)
def test_two_agents_train_as_one_and_a_killed_rank_ends_both(tmp_path, stage):
    one, two = tmp_path / "one", tmp_path / "two"
    assert end(start(stage, one, 1), one) == [0], (one / "agent-0").read_text()
    # a step's metrics come before its checkpoint, so that of the first step is there
    said = kill_second_rank(start(stage, two, 2), two, stage, 2)
    assert errors(said) == [GONE], said
    statuses = end(start(stage, two, 2), two)
    said = "".join(file.read_text() for file in outputs(two, 2))
    # the agent that holds the rendezvous may be gone when the other asks it for the last time
    assert 0 in statuses and (statuses == [0, 0] or "RendezvousConnectionError" in said), said
    assert "after step 1" in said
    assert len(trace(one)) > 1 and trace(two) == trace(one)
