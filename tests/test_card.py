"""Candidates are compiled for the GPU that the driver names, and told of it; one that can't be served is refused."""

import ctypes
import json
import re
import struct
from dataclasses import asdict, replace

import pytest
import torch

from nanotriton.config import ConfigError
from nanotriton.executor import Executor, executor, processes
from nanotriton.executor.common.card import DEFAULT, Card
from nanotriton.executor.gpu import compile_server, compiler, driver
from nanotriton.executor.gpu.ask import ATTRIBUTES, main
from nanotriton.executor.gpu.compiler import Binary, BinaryCache, CompileError, compile_kernel
from nanotriton.executor.replay.replayer import Replay
from nanotriton.executor.sandbox import files
from nanotriton.executor.sandbox.servers import CompileServers
from nanotriton.executor.sandbox.zygote import Zygote
from nanotriton.plan.plan import Kernel
from nanotriton.tasks.task import Task
from tests.recording import Refused, record
from tests.test_compile_servers import GOOD, LIMITS, collect
from tests.test_recorder import X, module
from tests.test_replayer import MATMUL

A100 = replace(
    DEFAULT,
    name="NVIDIA A100-SXM4-80GB",
    major=8,
    minor=0,
    multi_processor_count=108,
    clock_rate=1_410_000,
    shared_memory_per_block_optin=166_912,
    L2_cache_size=41_943_040,
)
RTX3090 = replace(
    DEFAULT,
    name="NVIDIA GeForce RTX 3090",
    major=8,
    minor=6,
    multi_processor_count=82,
    shared_memory_per_block_optin=101_376,
)
RTX4090 = replace(RTX3090, name="NVIDIA GeForce RTX 4090", minor=9, multi_processor_count=128)
B200 = replace(DEFAULT, name="NVIDIA B200", major=10, minor=0, multi_processor_count=148)
RTX5090 = replace(RTX3090, name="NVIDIA GeForce RTX 5090", major=12, minor=0, multi_processor_count=170)
CARDS = [A100, RTX3090, RTX4090, DEFAULT, B200, RTX5090]
of_each_card = pytest.mark.parametrize("card", CARDS, ids=lambda c: c.sm)

KERNELS = """
from triton.language.extra import libdevice

@triton.jit
def dot_kernel(x, y, N: tl.constexpr, PRECISION: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(y + at, tl.dot(tl.load(x + at), tl.load(x + at), input_precision=PRECISION))

@triton.jit
def tanh_kernel(x, y, N: tl.constexpr):
    tl.store(y + tl.arange(0, N), libdevice.tanh(tl.load(x + tl.arange(0, N))))
"""
FORWARD = """
y = torch.empty_like(x)
dot_kernel[(1,)](x, y, 32, "tf32")
dot_kernel[(1,)](x, y, 16, "ieee")
tanh_kernel[(1,)](x, y, 256)
return add(x, y)"""


def sm(cubin: bytes) -> int:
    """What a cubin is for, from ELF's e_flags: the lowest byte, or the second from CUDA's ABI 8 on."""
    (flags,) = struct.unpack_from("<I", cubin, 48)
    return flags >> (8 if cubin[8] >= 8 else 0) & 0xFF


@of_each_card
def test_cubins_are_made_for_each_card(card):
    plan = record(module(FORWARD, top=KERNELS), [torch.empty(32, 32)], card=card)
    binaries = [compile_kernel(kernel, card) for kernel in plan.kernels]
    assert [b.name for b in binaries] == ["dot_kernel", "dot_kernel", "tanh_kernel", "add_kernel"]
    assert {sm(b.cubin) for b in binaries} == {card.arch}


def test_compile_servers_compile_for_the_card_of_the_order(tmp_path):
    zygote = Zygote({"compile": compile_server.compile_server}, files.readable_paths())
    pool = CompileServers(zygote, str(tmp_path), 1)
    for each in (A100, RTX5090):
        pool.submit(each.arch, GOOD | {"card": asdict(each)}, LIMITS)
    found = collect(pool, 2)
    zygote.sock.close()
    assert {arch: sm(Binary.from_bytes(ended.payload, DEFAULT).cubin) for arch, ended in found.items()} == {
        80: 80,
        120: 120,
    }


def test_a_kernel_kept_for_one_card_is_none_of_another(tmp_path):
    kernel = Kernel(GOOD["name"], GOOD["ttir"], GOOD["options"])
    BinaryCache(DEFAULT, tmp_path).put(
        kernel, Binary("kernel", b"\x7fELF", shared=0, num_warps=4, num_ctas=1, cooperative=False)
    )
    assert (
        BinaryCache(DEFAULT, tmp_path).get(kernel) is not None
        and BinaryCache(A100, tmp_path).get(kernel) is None
    )


def test_a_block_has_the_shared_memory_of_its_card():
    top = MATMUL.replace("((16, 2), (32, 4))", "((128, 8),)").replace(
        "num_warps=w", "num_warps=w, num_stages=2"
    )
    top = top.replace("tl.dot(a, b", "tl.dot(a.to(tl.float16), b.to(tl.float16)")
    forward = (
        "y = torch.empty(128, 128, device=x.device)\nmatmul_kernel[(1, 1)](x, x, y, 128, 128, 512)\nreturn y"
    )
    for small in (RTX3090, RTX5090):
        plan = record(module(forward, top=top), [torch.empty(512, 512)], card=small)
        with pytest.raises(CompileError, match=r"shared memory, .* 101376 there are") as refused:
            compile_kernel(plan.kernels[0], small)
        assert refused.value.status == "out_of_resources"
    plan = record(module(forward, top=top), [torch.empty(512, 512)])
    assert (
        RTX3090.shared_memory_per_block_optin
        < compile_kernel(plan.kernels[0], DEFAULT).shared
        <= DEFAULT.shared_memory_per_block_optin
    )


def test_accumulators_that_blackwells_tensor_memory_has_no_room_for(monkeypatch):
    """In small: with all of its 512 columns, a kernel that needs more takes 20 s to compile."""
    top = """
@triton.jit
def loops(x, y, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    a = tl.load(x + tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :])
    b = tl.load(x + tl.arange(0, K)[:, None] * N + tl.arange(0, N)[None, :])
    acc = tl.zeros((M, N), dtype=tl.float32)
    for k in range(0, K):
        acc = tl.dot(a + k, b, acc)
    tl.store(y + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], acc)
"""
    forward = "y = torch.empty(64, 32, device=x.device)\nloops[(1,)](x, y, 64, 32, 32)\nreturn y"
    plan = record(module(forward, top=top), [torch.empty(64, 32, dtype=torch.float16)], card=B200)
    assert sm(compile_kernel(plan.kernels[0], B200).cubin) == 100
    monkeypatch.setattr(compiler, "TENSOR_MEMORY", 16)
    with pytest.raises(CompileError, match=r"tensor memory, \d+ columns needed, 16 there are") as refused:
        compile_kernel(plan.kernels[0], B200)
    assert refused.value.status == "out_of_resources"


# ---- what a candidate sees ----


SEES = """
assert torch.cuda.get_device_capability() == ({major}, {minor}) and torch.cuda.get_device_name(0) == "{name}"
properties = torch.cuda.get_device_properties(x.device)
assert properties.multi_processor_count == {multi_processor_count} and properties.name == "{name}"
assert properties.shared_memory_per_block_optin == {shared_memory_per_block_optin}
assert properties.L2_cache_size == {L2_cache_size} and torch.cuda.get_arch_list() == ["sm_{major}{minor}"]
assert torch.cuda.mem_get_info()[1] == properties.total_memory == {total_memory}
driver = triton.runtime.driver.active
assert driver.get_current_target().arch == {major}{minor} and driver.get_current_target().warp_size == 32
theirs = driver.utils.get_device_properties(0)
assert theirs["max_shared_mem"] == {shared_memory_per_block_optin} and theirs["sm_clock_rate"] == {clock_rate}
assert theirs["multiprocessor_count"] == {multi_processor_count}
assert theirs["max_num_regs"] == {regs_per_block} and theirs["warpSize"] == {warp_size}
"""


@of_each_card
def test_a_recorded_candidate_sees_its_card(card):
    plan = record(module(SEES.format(**asdict(card)) + "return add(x, x)"), [X], card=card)
    assert len(plan.launches()) == 1


def test_an_executors_candidates_see_its_card(monkeypatch):
    monkeypatch.setattr(executor, "DEFAULT", A100)
    task = Task("double", DOUBLE)
    sources = [module(SEES.format(**asdict(card)) + "return add(x, x)") for card in (A100, RTX3090)]
    with Executor(workers=1) as judges:
        right, wrong = [judges.submit(task, source).result() for source in sources]
    assert right.correct, right
    assert wrong.status == "runtime_error" and "AssertionError" in wrong.message


DOUBLE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x + x

def get_inputs():
    return [torch.randn(6, 20)]

def get_init_inputs():
    return []
"""
DESCRIPTORS = """
from triton.tools.tensor_descriptor import TensorDescriptor
@triton.jit
def tile(src, n, dst, B: tl.constexpr):
    i = tl.program_id(0) * B
    dst.store([i, 0], src.load([i, 0]) * n)
"""


@pytest.mark.parametrize("card", [RTX3090, DEFAULT, B200], ids=lambda c: c.sm)
def test_host_side_descriptors_on_cards_with_and_without_them(card):
    """Before Hopper Triton's front end takes a descriptor apart: the kernel has parameters for the parts."""
    forward = """
y = torch.empty_like(x)
source = TensorDescriptor.from_tensor(x, [16, 32])
tile[(3,)](source, 3, TensorDescriptor(y, y.shape, y.stride(), [16, 32]), B=16)
return y"""
    x = torch.randn(40, 32)
    plan = record(module(forward, top=DESCRIPTORS), [x], card=card)
    assert any(ty.startswith("tensordesc") for ty, _ in plan.launches()[0].args) == (card.major >= 9)
    assert torch.equal(Replay(plan).run([x]), x * 3)
    assert sm(compile_kernel(plan.kernels[0], card).cubin) == card.arch


def test_a_cluster_on_a_card_that_has_none_is_what_triton_says_it_is():
    source = module("y = torch.empty_like(x)\nadd_kernel[(2,)](x, x, y, 120, BLOCK=64, num_ctas=2)\nreturn y")
    with pytest.raises(Refused, match="num_ctas > 1 requires") as refused:
        record(source, [X], card=A100)
    assert refused.value.status == "runtime_error"
    kernel = record(source, [X]).kernels[0]
    assert compile_kernel(kernel, DEFAULT).num_ctas == 2
    with pytest.raises(CompileError, match="num_ctas > 1 requires"):  # a plan says what its recorder likes
        compile_kernel(kernel, A100)


# ---- which card there is ----


class Driver:
    """Stands in for libcuda.so.1 on a machine with this card."""

    def __init__(self, card: Card):
        self.card = card

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, device, number: int) -> int:
        device._obj.value = 7
        return 0

    def cuDeviceGetName(self, name, size: int, device: ctypes.c_int) -> int:
        name.value = self.card.name.encode()
        return int(device.value != 7)

    def cuDeviceTotalMem_v2(self, size, device: ctypes.c_int) -> int:
        size._obj.value = self.card.total_memory
        return int(device.value != 7)

    def cuDeviceGetAttribute(self, value, number: int, device: ctypes.c_int) -> int:
        field = next(name for name, n in ATTRIBUTES.items() if n == number)
        value._obj.value = getattr(self.card, field)
        return int(device.value != 7)


@pytest.mark.parametrize("there", [A100, RTX5090], ids=lambda c: c.sm)
def test_the_card_is_what_the_driver_says(there, monkeypatch, capsys):
    monkeypatch.setattr(driver, "library", lambda: Driver(there))
    main()
    assert Card(**json.loads(capsys.readouterr().out)) == there


@pytest.mark.parametrize(
    ("there", "says"),
    [
        (
            replace(DEFAULT, name="Tesla T4", major=7, minor=5),
            r"this machine's Tesla T4 \(sm_75\) is too old: candidates need sm_80 or newer",
        ),
        (
            replace(DEFAULT, name="Next", major=19, minor=0),
            r"the installed Triton \S+ does not compile for this machine's Next \(sm_190\): .*'sm_190a'.*",
        ),
    ],
    ids=["too old", "too new"],
)
def test_a_card_that_cannot_be_served_is_refused_in_one_line(there, says, monkeypatch):
    monkeypatch.setattr(driver, "library", lambda: Driver(there))
    with pytest.raises(SystemExit) as stop:
        main()
    assert re.fullmatch(says, stop.value.code) and "\n" not in stop.value.code


def test_no_card_no_executor(monkeypatch):
    """Before anything is started: no candidate is ever told that it crashed because its GPU can't be had."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match=r"^this machine has no usable CUDA GPU") as error:
        Executor(device="cuda")
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=r"^--device cuda: this machine has no usable CUDA GPU"):
        processes.check_card("cuda")
    processes.check_card("cpu")


def test_what_cannot_be_timed_is_refused_where_it_shall_be(monkeypatch):
    monkeypatch.setattr(processes, "ask_driver", lambda visible: replace(A100, memory_clock_rate=0))
    assert processes.read_card(None).major == 8
    with pytest.raises(ConfigError, match="can't be timed on this machine's NVIDIA A100"):
        Executor(device="cuda", time=True)
