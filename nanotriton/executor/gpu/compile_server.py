"""The program of a compile server: a sandboxed child that compiles one kernel after another.

The code is ours, but the TTIR that it reads is a stranger's, so the server runs in the sandbox and may die.
No candidate's Python ever runs here. The worker's side is sandbox/servers.py.
"""

import errno
import json
import os
import resource
import signal
import socket

import triton

from nanotriton.executor.common.card import Card
from nanotriton.executor.sandbox.protocol import Report, receive, send

# For ptxas, which touches 10 MB of fresh memory for each kernel. It needs 22 ms for an empty one: page faults
# are 12 ms of that, and 6 ms with these settings.
LARGE_PAGES = "glibc.malloc.hugetlb=1:glibc.malloc.top_pad=33554432:glibc.malloc.mmap_threshold=1073741824"


def compile_server(report: Report, fds: list[int], folder: str, args: dict) -> None:
    """Compile one kernel after another.

    fds[0]: a socket. Until it closes, each message brings two memory files, a job and one for the answer.
    A job is JSON: name, ttir and options of a validated plan's kernel, the card to compile for, and seconds.
    If the compiler takes longer than `seconds`, an alarm ends the server, even while its worker is busy.
    The answer's payload is a Binary; with `resources_only` there is none, only a refusal if it does not fit.
    """
    from nanotriton.executor.gpu import libdevice

    libdevice.install()
    # nobody reads line numbers here, and the machine code is the same without them
    triton.knobs.compilation.disable_line_info = True
    os.environ["GLIBC_TUNABLES"] = LARGE_PAGES
    report.begin()
    sock = socket.socket(fileno=fds[0])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while True:
        message, files = receive(sock)
        if message is None:
            return
        with open(files[0], "rb") as file:
            job = json.load(file)
        began = cpu_seconds()
        signal.setitimer(signal.ITIMER_REAL, job["seconds"])
        fill_order(Report(files[1]), job)
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.close(files[1])
        send(sock, {"cpu": cpu_seconds() - began})


def cpu_seconds() -> float:
    """CPU time of this process and of those that it ran."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def fill_order(report: Report, job: dict) -> None:
    """Compile the kernel of an order (sandbox/servers.py), and write the answer.

    Raises MemoryError or OSError, which end the server, if the server lacks memory itself.
    """
    from nanotriton.executor.gpu.compiler import CompileError, check_room, compile_kernel
    from nanotriton.plan.plan import Kernel
    from nanotriton.plan.signature import signature

    report.stage("compile")
    try:
        parameters = signature(job["ttir"], job["name"])
        kernel = Kernel(job["name"], job["ttir"], job["options"], parameters)
        card = Card(**job["card"])
        if job.get("resources_only"):
            check_room(kernel, card)
            report.finish({})
        else:
            report.finish({}, compile_kernel(kernel, card).to_bytes())
    except CompileError as error:
        report.finish({"status": error.status, "message": error.message})
    except (MemoryError, OSError) as error:
        if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
            message = f"kernel {job['name']}: to compile it takes more memory than the limit"
            report.finish({"status": "memory_limit", "message": message})
        # memory that earlier kernels left behind may be to blame, so a fresh server is asked again
        raise
