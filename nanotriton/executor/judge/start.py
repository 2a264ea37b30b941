"""How a worker begins: in the base, before any is forked, and then in the process of each."""

import contextlib
import importlib
import mmap
import os
import socket
import sys
import tempfile

import torch

from nanotriton.executor.child.process import process_child
from nanotriton.executor.child.record import record_child
from nanotriton.executor.child.script import script_child
from nanotriton.executor.common import probe
from nanotriton.executor.common.card import Card
from nanotriton.executor.common.limits import SHORTAGES
from nanotriton.executor.gpu.compile_server import compile_server
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.worker import Worker
from nanotriton.executor.sandbox import sandbox
from nanotriton.executor.sandbox.files import readable_paths
from nanotriton.executor.sandbox.linux import libc
from nanotriton.executor.sandbox.protocol import BEACON, remove_folder
from nanotriton.executor.sandbox.zygote import Zygote
from nanotriton.tasks.task import Task

# what a worker's children may run, by the name in Spawn.target
TARGETS = {
    "record": record_child,
    "compile": compile_server,
    "process": process_child,
    "script": script_child,
}
M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
# without this a task of gigabytes finds no room between parts of old blocks
ALLOCATOR = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}


def prepare(flavour: str, card: Card) -> None:
    """In the base, once: import everything and warm up, so that forks find it done.

    card: the GPU that candidates are judged for.
    """
    torch.set_num_threads(1)
    if flavour in ("record", "gpu"):
        from nanotriton.executor.child import recorder

        recorder.install(card)
        with tempfile.TemporaryDirectory() as folder:
            plan = recorder.warm_up(folder)
        if flavour == "gpu":
            from nanotriton.executor.gpu import libdevice
            from nanotriton.executor.gpu.compiler import compile_kernel

            plan.validate()
            compile_kernel(plan.kernels[0], card)
            libdevice.take_apart()
    else:
        from nanotriton.executor.gpu import first_launch

        importlib.import_module("torch._dynamo")  # it makes a folder meanwhile, which a child may not
        first_launch.prepare(card)
    Reference(Task(**probe.TASK))  # the judge's own imports


def main(sock: socket.socket, beacon: int, options: dict) -> None:
    """In the process that the base forked: first the zygote, which must know nothing, then the worker."""
    try:
        zygote = Zygote(TARGETS, readable_paths())
        os.makedirs(options["folder"], mode=0o700, exist_ok=True)
        if options["memory"]:
            # Freed tensors go back to the kernel. Or this threshold grows to 32 MiB, and memory between
            # smaller blocks is lost to the limit.
            libc.mallopt(M_MMAP_THRESHOLD, 1 << 20)
            sandbox.limit_memory(options["memory"])
        see_devices(options)
        # the zygote died: the executor starts another pair
        with contextlib.suppress(EOFError, ConnectionError):
            Worker(sock, mmap.mmap(beacon, BEACON.size), zygote, options).serve()
    except OSError as error:
        if error.errno not in SHORTAGES:
            raise
        print(f"executor: a worker ends, and another begins: {error}", file=sys.stderr, flush=True)
    finally:
        remove_folder(options["folder"])


def see_devices(options: dict) -> None:
    """The zygote records. This process stops pretending that there is a GPU, and may take a real one."""
    if options["flavour"] in ("record", "gpu"):
        from nanotriton.executor.child import recorder

        recorder.uninstall()
    if options["flavour"] == "gpu":
        del os.environ["CUDA_VISIBLE_DEVICES"]
        os.environ |= ALLOCATOR
        if options["visible"] is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = options["visible"]
