"""Recordings for tests. Recording changes torch and Triton in its process for good, so it happens in another one."""

import atexit
import functools
import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor

import torch

from nanotriton.executor.common.card import DEFAULT, Card
from nanotriton.plan.plan import Plan

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\nimport triton\nimport triton.language as tl\n"
ADD = """
@triton.jit
def add_kernel(x_ptr, y_ptr, o_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(o_ptr + offs, tl.load(x_ptr + offs, mask=mask) + tl.load(y_ptr + offs, mask=mask), mask=mask)

def add(x, y):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
    return out
"""


class Refused(Exception):
    """A RecordError, as it came out of the recording process."""

    def __init__(self, status: str, message: str, line: int, recordable: bool):
        super().__init__(f"{status}: {message} (line {line})")
        self.status, self.message, self.line, self.recordable = status, message, line, recordable


def _start() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    _install(DEFAULT)


def _install(card: Card) -> None:
    """Record for that GPU from here on."""
    from nanotriton.executor.child import recorder

    recorder.uninstall()
    recorder.install(card)


def _record(source: str, init_args: list, inputs: list | None, options: dict):
    from nanotriton.executor.child import recorder

    _install(options.pop("card"))
    with tempfile.TemporaryDirectory() as folder:
        try:
            if inputs is None:
                return recorder.record_script(source, folder=folder, **options).to_bytes()
            return recorder.record(source, init_args, inputs, folder=folder, **options)[0].to_bytes()
        except recorder.RecordError as error:
            return error.status, error.message, error.line, error.recordable


@functools.cache
def _pool() -> ProcessPoolExecutor:
    # spawn: a process without the parent's threads and without its CUDA context
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_start)
    atexit.register(pool.shutdown, cancel_futures=True)
    return pool


def record(source: str, inputs: list, init_args: list | None = None, **options) -> Plan:
    """The validated plan of `source`; raises Refused. Tensors of `inputs` travel as meta tensors: data does not.

    card: the GPU that it is recorded for.
    """
    options = {"seed": 0, "card": DEFAULT} | options
    bare = [
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        if isinstance(x, torch.Tensor)
        else x
        for x in inputs
    ]
    return _plan(source, init_args or [], bare, options)


def record_script(source: str) -> Plan:
    return _plan(source, [], None, {"seed": 0, "card": DEFAULT})


def _plan(*request) -> Plan:
    result = _pool().submit(_record, *request).result(timeout=120)
    if isinstance(result, tuple):
        raise Refused(*result)
    return Plan.from_bytes(result)
