"""Two ranks to which something happens, and then the next two. Test code: test_watch.py starts it.

    python failing_ranks.py NAME PORT [NAME PORT ...]

NAME is a function of this file, PORT a free one. All ranks are forks of one process, as torch's import takes
seconds, and run at the same time. What each writes to stderr is the file NAME-RANK; stdout gets the exit
statuses in JSON.
"""

import errno
import faulthandler
import json
import os
import signal
import sys
import time

import torch

from nanotriton.config import ConfigError
from nanotriton.parallel import watch, world
from nanotriton.parallel.checkpoint import Checkpointer
from nanotriton.parallel.program import program

agreed = world.agree
LATE = 150  # seconds after which a rank says where it is, and ends
watch.BEAT, watch.PATIENCE, watch.SAME, watch.ENDING = 0.1, 4.0, 0.5, 5.0


def together(world):
    for _ in range(10_000):
        world.all_sum(torch.ones(10))


def both_mistaken(world):
    raise ConfigError("--lr: no")


def mistaken(world):
    if world.rank == 1:
        raise ConfigError("--tasks /tasks: no such folder")
    together(world)


def broken(world):
    if world.rank == 1:
        raise ZeroDivisionError("on\npurpose")
    together(world)


def busy(world):
    if world.rank == 1:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    time.sleep(600)  # as in a rollout


def killed(world):
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    together(world)


def first(world):
    if world.rank == 0:
        raise ValueError("the executor can't start")
    time.sleep(600)


def killed_first(world):
    if world.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    together(world)


def silent(world):
    watch.SILENT = 3
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)


def full(world):
    if world.rank == 1:
        raise OSError(errno.ENOSPC, "No space left on device", "/disk/samples.jsonl")
    time.sleep(600)


def unwritable(world):
    model = torch.nn.Linear(2, 2)
    saver = Checkpointer("checkpoints", world)
    if world.rank == 1:

        def refuse(*_):
            raise OSError(errno.EACCES, "Permission denied")

        saver._write = refuse
    saver.save(1, model, torch.optim.AdamW(model.parameters()), {})


def no_gpu(world):
    raise AssertionError("it began")


def agree(store, rank, size, kind, trouble):
    """world.agree, if the second rank's GPU is broken."""
    agreed(store, rank, size, kind, "its GPU 1 can't be used: CUDA error" if rank == 1 else trouble)


def ends(world):
    world.barrier()


def start(name, port):
    """Both ranks of a run to which this happens; their stderr is a file -> their process ids."""
    children = []
    for rank in range(2):
        child = os.fork()
        if not child:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": port}
            os.dup2(os.open(f"{name}-{rank}", os.O_CREAT | os.O_WRONLY), 2)
            faulthandler.dump_traceback_later(LATE, exit=True)
            if name == "no_gpu":
                world.agree = agree
            program(lambda cfg, world: globals()[name](world), None)
        children.append(child)
    return children


def main(names: list[str], ports: list[str]) -> None:
    of = {
        child: (name, rank)
        for name, port in zip(names, ports, strict=True)
        for rank, child in enumerate(start(name, port))
    }
    codes = {name: [None, None] for name in names}
    while of:
        child, status = os.wait()
        name, rank = of.pop(child)
        codes[name][rank] = os.waitstatus_to_exitcode(status)
        if name == "silent" and rank == 0:  # the other one is stopped, and ends like this only
            for other in [other for other in of if of[other][0] == name]:
                os.kill(other, signal.SIGKILL)
    print(json.dumps(codes))


if __name__ == "__main__":
    main(sys.argv[1::2], sys.argv[2::2])
