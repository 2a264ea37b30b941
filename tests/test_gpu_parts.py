"""What of the CUDA path needs no GPU: packing arguments, dropping configurations, the clock's statistics, the floor's probe."""

import contextlib
import fcntl
import os
import struct
import threading
from types import SimpleNamespace

import pytest
import torch

from nanotriton.executor.gpu import arena, driver, gpu, timing
from nanotriton.executor.gpu.compiler import Binary
from nanotriton.executor.gpu.locks import Turns
from nanotriton.executor.judge.candidate import gpu_runner, process
from nanotriton.executor.judge.candidate.gpu_runner import drop_refused
from nanotriton.executor.judge.candidate.job import Job
from nanotriton.executor.judge.candidate.measure import needed_bytes, reference_work
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.replay.backend import ReplayError
from nanotriton.executor.replay.poison import Number, poison
from nanotriton.executor.sandbox.protocol import Ended
from nanotriton.plan.aten import tensor_ids
from nanotriton.plan.plan import Choice, Launch, Plan, Storage
from nanotriton.tasks.task import Task
from nanotriton.verdict import Fault, TaskFault
from tests.recording import record


def function(sizes: list[int], descriptors: list | None = None) -> driver.Function:
    return driver.Function(Binary("k", b"", 0, 4, 1, False, descriptors=descriptors or []), None, None, sizes)


def test_arguments_are_packed_as_the_kernel_reads_them():
    args = [
        ("!tt.ptr<f32>", 0x1234567890),
        ("i1", True),
        ("i8", -1),
        ("i32", -5),
        ("i32", 2**32 - 1),
        ("i64", -(2**63)),
        ("f16", 1.5),
        ("bf16", 1.5),
        ("f32", 1e300),
        ("f64", 0.1),
    ]
    packed = driver.pack(function([8, 1, 1, 4, 4, 8, 2, 2, 4, 8, 8, 8]), args, 7, 0)
    want = [0x1234567890, 1, 0xFF, 2**32 - 5, 2**32 - 1, 2**63]
    assert [int.from_bytes(p, "little") for p in packed[:6]] == want
    assert packed[6:10] == [
        struct.pack("<e", 1.5),
        b"\xc0\x3f",
        struct.pack("<f", float("inf")),
        struct.pack("<d", 0.1),
    ]
    assert packed[10:] == [struct.pack("<Q", 7), bytes(8)]


@pytest.mark.parametrize(("ty", "size"), [("f16", 2), ("bf16", 2), ("f32", 4)])
def test_a_number_that_its_type_cannot_hold_is_infinite(ty, size):
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[ty]
    for value in (1e300, -1e300):
        data, _, _ = driver.pack(function([size, 8, 8]), [(ty, value)], 0, 0)
        assert torch.frombuffer(bytearray(data), dtype=dtype).item() == value * float("inf")


def turns(tmp_path) -> Turns:
    return Turns(str(tmp_path / "gpu"))


def close(*workers: Turns) -> None:
    for one in workers:
        one.close()


def test_who_waits_for_quiet_goes_first_where_others_pause(tmp_path):
    """One worker's judgement is long, another's stopwatch waits: it has the GPU alone at the next pause, and not before."""

    judging, timing_, order = turns(tmp_path), turns(tmp_path), []

    def time_it():
        with timing_.busy():
            busy.set()
            with timing_.quiet():
                timing_.pause()  # of no effect: it stays quiet
                order.append("timed")

    busy, thread = threading.Event(), threading.Thread(target=time_it)
    with judging.busy():
        thread.start()
        busy.wait()
        while not _is_locked(judging.compute.wanted):  # until it asks for quiet
            pass
        order.append("first trial")
        judging.pause()
        order.append("second trial")
    thread.join()
    assert order == ["first trial", "timed", "second trial"]
    order.clear()

    def take_all():
        with timing_.busy():
            busy.set()
            with timing_.alone():
                with timing_.quiet():
                    pass
                order.append("alone")

    busy.clear()
    thread = threading.Thread(target=take_all)
    with judging.busy():
        thread.start()
        busy.wait()
        while not _is_locked(judging.memory.wanted):
            pass
        judging.pause()  # what it has in memory stays there meanwhile
        with judging.quiet():
            order.append("done")
    thread.join()
    assert order == ["done", "alone"]
    close(judging, timing_)


def test_all_who_wait_for_quiet_have_it_at_one_pause(tmp_path):
    judging, *stopwatches = [turns(tmp_path) for _ in range(4)]
    order, asked, busy = [], threading.Event(), threading.Semaphore(0)

    def time_it(one: Turns, number: int):
        with one.busy():
            busy.release()
            asked.wait()
            with one.quiet():
                order.append(number)
            order.append("judged")

    threads = [threading.Thread(target=time_it, args=(one, i)) for i, one in enumerate(stopwatches)]
    with judging.busy():
        for thread in threads:
            thread.start()
            busy.acquire()
        asked.set()
        while _holders(judging.compute.wanted) < 3:
            pass
        judging.pause()
        order.append("judged")
    for thread in threads:
        thread.join()
    assert sorted(order[:3]) == [0, 1, 2] and order[3:] == ["judged"] * 4
    close(judging, *stopwatches)


def test_several_who_want_all_memory_have_it_in_turns(tmp_path):
    """Beside stopwatches: nobody waits for the memory with the room in hand, or the other way round."""
    gpus, inside, met = [turns(tmp_path) for _ in range(4)], [], []

    def work(one: Turns, needs_all: bool):
        for _ in range(100):
            with one.busy():
                with one.alone() if needs_all else one.quiet():
                    inside.append(one)
                    met.append(len(inside))
                    inside.remove(one)
                one.pause()

    threads = [threading.Thread(target=work, args=(one, i < 3), daemon=True) for i, one in enumerate(gpus)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads) and met == [1] * 400
    close(*gpus)


def test_a_tuner_without_memory_ends_its_candidate_and_not_the_worker():
    def fails(*_):
        raise RuntimeError(message)

    worker = SimpleNamespace(
        gpu=SimpleNamespace(own=lambda runner: None, watch=SimpleNamespace(quick=None)),
        stage=lambda *_: contextlib.nullcontext(),
    )
    runner = SimpleNamespace(replay=SimpleNamespace(tune=fails), by_name=lambda seed: {}, recorded=0)
    inputs, code = SimpleNamespace(draw=lambda kind, seed: []), SimpleNamespace(settle=lambda: None)
    reference = SimpleNamespace(inputs=inputs, code=code)
    message = "CUDA out of memory. Tried to allocate 2 GiB"
    with pytest.raises(Fault) as fault:
        gpu_runner.tune(SimpleNamespace(timeout=1.0), worker, reference, runner)
    assert fault.value.status == "memory_limit"
    message = "a mistake of ours"
    with pytest.raises(RuntimeError, match=message):
        gpu_runner.tune(SimpleNamespace(timeout=1.0), worker, reference, runner)


def _holders(fd: int) -> int:
    """How many hold this file's lock; those who wait are marked."""
    with open("/proc/locks") as file:
        return sum(f":{os.fstat(fd).st_ino} " in line and "->" not in line for line in file)


def _is_locked(fd: int) -> bool:
    """Whether somebody else holds this file's lock."""
    other = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(other)


@pytest.mark.parametrize("number", [None, Number(0.5), Number(1.0, 0.5)], ids=["NaN", "usual", "large"])
def test_numbers_fill_what_the_candidate_allocates_and_no_guard(number):
    backend = arena.CudaBackend.__new__(arena.CudaBackend)
    backend.storages = [Storage("temp", 32, "float32"), Storage("temp", 8, "int8")]
    backend.offsets, backend.guards = [32, 96], [(0, 32), (64, 96), (104, 128)]
    backend.arena, backend.resets, backend.number = torch.zeros(128, dtype=torch.uint8), 0, number
    backend.reset(backend.storages)
    assert not backend._broken(backend.guards)
    floats = backend.arena[32:64].view(torch.float32)
    if number is None:
        assert floats.isnan().all()
    else:
        assert (floats == number.of(torch.float32)).all()
    assert len(set(backend.arena[96:104].tolist())) == 1


def test_what_a_run_left_is_read_with_its_guards():
    backend = arena.CudaBackend.__new__(arena.CudaBackend)
    backend.storages, backend.guards = [Storage("empty", 64, "float32")], [(0, 32), (96, 128)]
    backend.arena = torch.zeros(128, dtype=torch.uint8)
    poison(backend.arena, "float32")
    backend.arena[32:96] = 0
    flags = [torch.tensor(True), torch.tensor(False)]
    assert backend.finish(lambda: ("answer", flags)) == ("answer", [True, False])
    for address, where in ((31, "before the first buffer"), (96, "behind buffer 0 \\(64 bytes\\)")):
        before, backend.arena[address] = int(backend.arena[address]), 3
        with pytest.raises(ReplayError, match=where) as error:
            backend.finish(lambda: ("answer", flags))
        assert error.value.status == "out_of_bounds" and not error.value.fatal
        backend.arena[address] = before

    def fails(message: str):
        raise RuntimeError(message)

    with pytest.raises(ReplayError, match="the GPU reports: CUDA error: an illegal") as error:
        backend.finish(lambda: fails("CUDA error: an illegal memory access was encountered"))
    assert error.value.status == "illegal_memory" and error.value.fatal
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        backend.finish(lambda: fails("CUDA out of memory. Tried to allocate 2 GiB"))
    # the driver's words, which cost no context
    with pytest.raises(RuntimeError, match="CUDA error: out of memory"):
        backend.finish(lambda: fails("CUDA error: out of memory"))


def test_too_few_or_other_arguments_never_reach_the_driver():
    for args in ([], [("i32", 1)], [("i32", 1), ("i32", 1), ("i32", 1)], [("i64", 1), ("i32", 1)]):
        with pytest.raises(driver.DriverError, match="takes parameters"):
            driver.pack(function([4, 4, 8, 8]), args, 0, 0)


@pytest.mark.parametrize("flags", [1, 2])  # triton 3.6, triton 3.8
def test_a_descriptor_without_tma_is_spelled_out(flags):
    value = [4096, [48, 32], [32, 1], "nan"]
    packed = driver.pack(
        function([8, 8, 8, 8, 8, *[1] * flags, 4, 4, 8, 8, 4, 8, 8]),
        [("!tt.tensordesc<16x32xf32>", value), ("i32", 9)],
        0,
        0,
    )
    assert [int.from_bytes(p, "little") for p in packed] == [
        4096,
        48,
        32,
        32,
        1,
        1,
        *[0] * (flags - 1),
        48,
        32,
        32,
        1,
        9,
        0,
        0,
    ]


def test_configurations_that_do_not_compile_are_dropped_from_every_choice():
    launch = lambda kernel: Launch(kernel, (1, 1, 1), [])
    make = lambda: Plan(
        steps=[
            Choice(0, [[launch(0)], [launch(1)], [launch(2)]]),
            launch(3),
            Choice(0, [[launch(0)], [launch(1)], [launch(4)]]),
        ]
    )
    fault = Fault("out_of_resources", "shared memory")
    plan = make()
    drop_refused(plan, {0: fault, 4: fault})
    assert [[a[0].kernel for a in s.alternatives] for s in plan.steps if isinstance(s, Choice)] == [[1], [1]]
    with pytest.raises(Fault, match="shared memory"):
        drop_refused(make(), {0: fault, 1: fault, 2: fault})
    with pytest.raises(Fault, match="shared memory"):
        drop_refused(make(), {3: fault})
    drop_refused(plan := make(), {})
    assert len(plan.steps[0].alternatives) == 3


@pytest.mark.parametrize("time, compiled", [(False, [0, 3, 1]), (True, [0, 1, 2, 3])])
def test_only_the_configuration_that_runs_is_compiled_unless_all_are_timed(monkeypatch, time, compiled):
    launch = lambda kernel: Launch(kernel, (1, 1, 1), [])
    kernels = [SimpleNamespace(key=str(i)) for i in range(4)]

    def recorded() -> Plan:
        return Plan(kernels=kernels, steps=[Choice(0, [[launch(0)], [launch(1)], [launch(2)]]), launch(3)])

    plan, second, asked = recorded(), recorded(), []

    def binary_of(job, worker, kernel):
        asked.append(int(kernel.key))
        if kernel.key == "0":
            raise Fault("out_of_resources", "shared memory")
        return kernel.key
        yield

    monkeypatch.setattr(gpu_runner, "binary_of", binary_of)
    monkeypatch.setattr(gpu_runner, "tune", lambda *args: None)
    monkeypatch.setattr(gpu_runner, "GpuRunner", lambda *args: args[-1])
    monkeypatch.setattr(gpu_runner, "add_halves", lambda *args: iter(()))
    worker = SimpleNamespace(gpu=SimpleNamespace(binaries=SimpleNamespace(get=lambda kernel: None)))
    with pytest.raises(StopIteration) as end:
        next(gpu_runner.make_runner(SimpleNamespace(time=time), worker, None, [plan, second], 0, {}))
    assert asked == compiled and sorted(end.value.value) == [str(i) for i in sorted(compiled) if i]
    for call in (plan, second):
        assert [a[0].kernel for a in call.steps[0].alternatives] == [1, 2]


SUM_WITH_A_HOLE = """import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def part(x, p, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    near = (o < 900000) | (o >= 900050)
    total = tl.sum(tl.load(x + o, mask=(o < n) & near, other=0.0) * 2 + tl.abs(tl.load(x + o, mask=near & (o < n))))
    tl.store(p + tl.program_id(0), total)


class ModelNew(nn.Module):
    def forward(self, x):
        p = torch.empty(triton.cdiv(x.numel(), 4096), device=x.device)
        part[(p.numel(),)](x, p, x.numel(), B=4096)
        return p
"""


def test_what_is_never_read_is_found_beside_a_gpu_in_millions_of_elements():
    x = torch.randn(3, 1_000_000)
    plan = record(SUM_WITH_A_HOLE, [x])
    runner = SimpleNamespace(
        reference=SimpleNamespace(
            inputs=SimpleNamespace(draw=lambda kind, seed: [x]),
            modules=SimpleNamespace(large_weights=lambda seed: {}),
        ),
        plan=plan,
        recorded=0,
        replay=SimpleNamespace(chosen={}),
        by_name=lambda weights: {},
    )
    trial = SimpleNamespace(kind="plain", inputs=1, weights=1)
    unread = gpu_runner.GpuRunner.find_unread(runner, trial, worth=True)
    places = unread.of(tensor_ids(plan.inputs)[0]).flatten().nonzero().flatten()
    assert places.tolist() == list(range(900_000, 900_050))
    assert gpu_runner.GpuRunner.find_unread(runner, trial, worth=False) is None
    runner.reference.inputs.draw = lambda kind, seed: [x.expand(200, 3, 1_000_000)]
    # it would copy gigabytes in vain
    assert gpu_runner.GpuRunner.find_unread(runner, trial, worth=True) is None


def test_the_clock_stops_when_it_knows_enough():
    steady, noisy = [10.0, 10.01] * 10, [10.0, 20.0] * 10
    assert timing._enough(steady) and not timing._enough(steady[:-1]) and not timing._enough(noisy)
    assert timing._enough(noisy * 10)  # at most MAX_RUNS
    summary = timing._summary([9.0, 10.0, 10.0, 11.0, 50.0], "graph")
    assert summary.us == 10.0 and summary.runs == 5 and summary.spread > 0


HEAD = "import torch\nimport torch.nn as nn\n\n"
DRAW = "\n\ndef get_inputs():\n    return [torch.randn(600, 1000), torch.randn(600, 1000)]\n\n\ndef get_init_inputs():\n    return []\n"


def task(body: str) -> Reference:
    return Reference(
        Task(
            "t", HEAD + f"class Model(nn.Module):\n    def forward(self, x, y):\n        return {body}" + DRAW
        )
    )


@pytest.mark.parametrize(
    ("body", "low", "high"),
    [
        ("x + y", 1.79, 1.81),
        ("x * 2", 0.89, 0.91),
        ("x[:, ::2] + x[:, 1::2]", 0.89, 0.91),
        ("x[:6] + y[:6]", 0, 0.1),
    ],
)
def test_the_floor_counts_only_bytes_that_the_answer_needs(body, low, high):
    reference = task(body)
    inputs = reference.inputs.draw("plain", 0)
    keep = [t.clone() for t in inputs]
    assert low <= needed_bytes(reference, inputs, 0) / inputs[0].nbytes <= high
    assert all(map(torch.equal, inputs, keep))


def test_the_reference_is_timed_on_fresh_inputs():
    reference = task("x + y")
    draws = [reference.inputs.draw("plain", seed) for seed in (1, 2)]
    seen = []
    work = reference_work(reference, 0, draws)
    reference.code.names["Model"].forward = lambda self, x, y: seen.append((x.clone(), y.clone()))
    for i in range(3):
        work.before(i)
        work.run()
    assert [
        torch.equal(x, draws[i % 2][0]) and torch.equal(y, draws[i % 2][1]) for i, (x, y) in enumerate(seen)
    ] == [True] * 3


def test_a_worker_that_begins_late_knows_how_much_memory_there_was(tmp_path):
    assert [gpu.most(str(tmp_path / "free"), free) for free in (70, 80, 3, 81)] == [70, 80, 80, 81]


@pytest.mark.parametrize("free, raised", [(0, TaskFault), (8 << 30, Fault)])
def test_a_gpu_without_room_for_a_child_is_no_fault_of_the_candidate(monkeypatch, free, raised):
    """It is asked again, later; what the child says is believed if we see it too."""
    reference = task("x + y")
    worker = SimpleNamespace(
        device="cuda",
        secret=b"",
        reference=lambda task: reference,
        patience=9.0,
        stage=lambda *_: contextlib.nullcontext(),
        add_child=lambda *_: None,
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 80 << 30))
    monkeypatch.setattr(process, "check_rules", lambda job: None)
    child = process.process_mode(Job(0, reference.task, "", "none", 9.0, 1 << 30), worker)
    waits, ended = (
        [next(child).args["wait"]],
        Ended(0, 1.0, 1.0, code=0, header={"status": "no_room", "message": "out of memory"}),
    )
    with pytest.raises(Fault, match="no memory left on the GPU") as error:
        while True:
            waits.append(child.send(ended).args["wait"])
    assert waits == list(process.WAITS) and type(error.value) is raised
