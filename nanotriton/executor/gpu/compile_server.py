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

from nanotriton.executor.sandbox.protocol import Report, receive, send

# For ptxas, which for each kernel touches 10 MB anew: of its 22 ms for an empty one 12 are page faults, with
# these 6.
LARGE_PAGES = "glibc.malloc.hugetlb=1:glibc.malloc.top_pad=33554432:glibc.malloc.mmap_threshold=1073741824"


def compile_server(report: Report, fds: list[int], folder: str, args: dict) -> None:
    """Compile one kernel after another: our code, hostile TTIR. fds[0]: a socket that brings (job, result) memory files until it closes.

    A job: name, ttir, options, of a validated plan, and seconds: an alarm ends the server if the compiler takes longer, also while
    its worker is busy. The answer's payload is a Binary.
    """
    from nanotriton.executor.gpu import libdevice

    libdevice.install()
    # which nobody reads here; the machine code is the same without
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
    """Of this process and of those that it ran."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def fill_order(report: Report, job: dict) -> None:
    """Compile the kernel of an order (sandbox/servers.py), and write the answer."""
    from nanotriton.executor.gpu.compiler import CompileError, compile_kernel
    from nanotriton.plan.plan import Kernel
    from nanotriton.plan.signature import signature

    report.stage("compile")
    try:
        binary = compile_kernel(
            Kernel(job["name"], job["ttir"], job["options"], signature(job["ttir"], job["name"]))
        )
        report.finish({}, binary.to_bytes())
    except CompileError as error:
        report.finish({"status": error.status, "message": error.message})
    # this ends the server: what kernels before left may be to blame, so a fresh one is asked again
    except (MemoryError, OSError) as error:
        if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
            report.finish(
                {
                    "status": "memory_limit",
                    "message": f"kernel {job['name']}: to compile it takes more memory than the limit",
                }
            )
        raise
