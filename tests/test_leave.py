"""How the ranks of a run end: after all have written, and without the interpreter's teardown."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
# Stands for Gloo's thread, which wants the interpreter when that is gone.
LEAVES = """
import atexit, os, sys, threading
from nanotriton.parallel.world import leave

class Late:
    def __del__(self, abort=os.abort):
        abort()

late = Late()
atexit.register(print, "the handler", end=" ")
begin = threading.Event()
threading.Thread(target=lambda: begin.wait(30) and print("the thread", end=" ")).start()
print("main", end=" ")
begin.set()
leave(7)
"""
RANKS = """
import atexit, os, sys, time
from pathlib import Path
from nanotriton.parallel.program import program

def main(cfg, world):
    world.all_sum(__import__("torch").ones(100))
    if world.is_main:
        time.sleep(0.2)  # the other rank has nothing left to do
        Path("summary.json").write_text("{}")
    if cfg == "fails":
        raise ZeroDivisionError("on purpose")
    return 5

children = []
for rank in range(2):
    child = os.fork()
    if not child:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        atexit.register(lambda: Path(f"ended {rank}").write_text(str(Path("summary.json").exists())))
        program(main, sys.argv[1])
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


def run(script: str, *arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)


def test_a_rank_leaves_without_the_teardown_and_with_everything_else(tmp_path):
    assert run(LEAVES, folder=tmp_path, WORLD_SIZE="1").returncode == -signal.SIGABRT
    done = run(LEAVES, folder=tmp_path, WORLD_SIZE="2")
    assert done.returncode == 7
    assert done.stdout == "main the thread the handler "


@pytest.mark.parametrize(("cfg", "codes"), [("ends", "[5, 5]"), ("fails", "[1, 1]")])
def test_no_rank_ends_before_all_have_written(tmp_path, cfg, codes):
    meet = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = run(RANKS, cfg, folder=tmp_path, **meet)
    assert done.stdout == f"{codes}\n", done.stderr
    if cfg == "ends":
        assert [(tmp_path / f"ended {rank}").read_text() for rank in range(2)] == ["True", "True"]
    else:
        assert done.stderr.count("]: ZeroDivisionError: on purpose") == 2  # two tracebacks, and a line
        assert done.stderr.count("error: ") == 1
