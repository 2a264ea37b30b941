"""Compile servers: every kernel gets its own end, whoever compiled before it, and a server that dies or is late costs only its kernel."""

import errno
import os
import select
import signal
import time
from dataclasses import asdict

import pytest

from nanotriton.executor.common.card import DEFAULT
from nanotriton.executor.gpu import compile_server, compiler
from nanotriton.executor.gpu.compiler import Binary
from nanotriton.executor.judge.candidate.job import check_ended
from nanotriton.executor.sandbox import files, sandbox, servers
from nanotriton.executor.sandbox.protocol import Ended, Report
from nanotriton.executor.sandbox.servers import CompileServers
from nanotriton.executor.sandbox.zygote import Zygote
from nanotriton.verdict import Fault

TTIR = """module {
  tt.func public @kernel(%p: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %n: i32) attributes {noinline = false} {
    %r = tt.make_range {end = 128 : i32, start = 0 : i32} : tensor<128xi32>
    %b = tt.splat %p : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>>
    %a = tt.addptr %b, %r : tensor<128x!tt.ptr<f32>>, tensor<128xi32>
    %x = tt.load %a : tensor<128x!tt.ptr<f32>>
    %y = arith.addf %x, %x : tensor<128xf32>
    tt.store %a, %y : tensor<128x!tt.ptr<f32>>
    tt.return
  }
}
"""
GOOD = {
    "name": "kernel",
    "ttir": TTIR,
    "options": {
        "num_warps": 4,
        "num_stages": 3,
        "num_ctas": 1,
        "maxnreg": None,
        "launch_cooperative_grid": False,
    },
    "card": asdict(DEFAULT),
}
BAD = GOOD | {"ttir": TTIR.replace("arith.addf %x, %x", "arith.addf %x, %n")}
LIMITS = sandbox.Limits(60.0, 4 << 30, output=64 << 20)


@pytest.fixture(scope="module")
def zygote():
    zygote = Zygote({"compile": compile_server.compile_server}, files.readable_paths())
    yield zygote
    zygote.sock.close()


def collect(pool: CompileServers, count: int, meanwhile=lambda: None) -> dict:
    """{owner: how its order ended} of `count` orders, by the loop that a worker has."""
    found, deadline = {}, time.monotonic() + 120
    while len(found) < count:
        assert time.monotonic() < deadline
        socks = pool.sockets()
        ready, _, _ = select.select([*socks, pool.zygote.sock], [], [], pool.patience())
        pool.kill_overdue(set(ready))
        for fd in ready:
            event = pool.zygote.event() if fd is pool.zygote.sock else None
            answer = (
                pool.ended(event)
                if event
                else pool.answered(socks[fd])
                if fd is not pool.zygote.sock
                else None
            )
            found.update([answer] if answer else [])
        meanwhile()
    return found


def test_good_and_bad_kernels_in_turns(zygote, tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "LIFE", 3)
    pool = CompileServers(zygote, str(tmp_path), 2)
    for i in range(8):
        pool.submit(i, BAD if i % 3 == 1 else GOOD, LIMITS)
    found = collect(pool, 8)
    binaries = [Binary.from_bytes(e.payload, DEFAULT) for i, e in found.items() if i % 3 != 1]
    assert [(b.name, b.cubin[:4]) for b in binaries] == [("kernel", b"\x7fELF")] * 5
    assert {found[i].header["status"] for i in (1, 4, 7)} == {"compile_error"}
    assert all(e.cpu > 0 and e.seconds > 0 for e in found.values())
    assert pool.started >= 3  # one that has lived its life is replaced


@pytest.mark.parametrize("kills", [1, 2])
def test_an_order_whose_server_dies_has_one_more_try_in_a_fresh_one(zygote, tmp_path, kills):
    pool = CompileServers(zygote, str(tmp_path), 1)
    for i in range(3):
        pool.submit(i, GOOD, LIMITS)
    killed, gone = [], []

    def kill():
        server = pool.servers[0] if pool.servers else None
        if server and server.child in zygote.pids and server.child not in killed and len(killed) < kills:
            killed.append(server.child)
            gone.append(server.sock)
            os.kill(zygote.pids[server.child], signal.SIGKILL)

    found = collect(pool, 3, kill)
    if kills == 1:
        assert found[0].payload
    else:
        assert found[0].signal == signal.SIGKILL and found[0].header is None and found[0].killed is None
    assert found[1].payload and found[2].payload and len(killed) == kills
    assert pool.answered(gone[0]) is None  # its end may be reported before its socket's


def test_what_kernels_before_it_left_behind_kills_no_kernel(zygote, tmp_path, monkeypatch):
    """A server that compiled others has less memory left; an order that it dies of is asked again of one that has all of it."""
    pool = CompileServers(zygote, str(tmp_path), 1)
    pool.submit("first", GOOD, LIMITS)
    assert collect(pool, 1)["first"].payload
    used = pool.servers[0]
    pool.submit("second", GOOD, LIMITS)
    os.kill(zygote.pids[used.child], signal.SIGABRT)
    assert collect(pool, 1)["second"].payload and pool.started == 2 and used not in pool.servers


@pytest.mark.parametrize("worker_is_busy", [False, True])
def test_a_late_order_is_timed_out(zygote, tmp_path, monkeypatch, worker_is_busy):
    pool = CompileServers(zygote, str(tmp_path), 1)
    if worker_is_busy:
        monkeypatch.setattr(pool, "kill_overdue", lambda ready: None)
    pool.submit("late", GOOD, sandbox.Limits(0.001, 4 << 30, output=64 << 20))
    pool.submit("next", GOOD, LIMITS)
    found = collect(pool, 2)
    assert found["late"].killed == "timeout" and found["next"].payload


def test_an_answer_that_waits_for_a_busy_worker_is_not_late(zygote, tmp_path):
    pool = CompileServers(zygote, str(tmp_path), 1)
    pool.submit("done", GOOD, LIMITS)
    server = pool.servers[0]
    assert select.select([server.sock], [], [], 120)[0]  # it has answered, and nobody has read it
    server.order.started -= 2 * LIMITS.seconds
    pool.kill_overdue({server.sock.fileno()})
    assert server.killed is None and pool.answered(server.sock)[1].payload


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")])
def test_a_kernel_that_takes_too_much_memory_to_compile(monkeypatch, tmp_path, error):
    def compile_kernel(kernel, card):
        raise error

    monkeypatch.setattr(compiler, "compile_kernel", compile_kernel)
    with open(tmp_path / "result", "wb+", buffering=0) as file:
        with pytest.raises(type(error)):  # which ends the server
            compile_server.fill_order(Report(os.dup(file.fileno())), GOOD)
        ended = Ended(1, 0.0, 0.0, code=1).read(file.fileno(), 1 << 20)
    with pytest.raises(Fault, match="kernel kernel: to compile it takes more memory") as fault:
        check_ended(ended, LIMITS)
    assert fault.value.status == "memory_limit"
