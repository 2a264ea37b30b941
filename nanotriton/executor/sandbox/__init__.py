"""The sandbox: the processes in which strangers' work is done are forked, confined and ended here.

Who runs here. Two kinds of process do. A zygote is a fork of its worker, made before the worker knew
anything; it forks children, times them and reaps them, and never looks at what they wrote. A child runs
here in its first milliseconds, while it shuts the doors behind itself (`sandbox.enter`) and before one line
of the candidate has run.

What it trusts. It trusts the Linux kernel: Landlock for files, seccomp for system calls, resource limits,
and the parent-death signal. Where the kernel lacks one, `sandbox.support` says so and the executor logs it
once. The docstring of sandbox.py lists what all this does *not* protect.

Who may import it. Every part of the executor may, as both sides need it. It imports no other wing. What a
zygote loads is visible to every candidate that it forks, so no secret belongs here.

    sandbox.py        the limits of a process, and how it gives up whatever else it could do
    files.py          the files that it may open: Landlock
    system_calls.py   the system calls that it may make: seccomp
    linux.py          system calls by number, which these are made of
    forks.py          what makes forks cheap
    zygote.py         forks a child for each candidate, enforces its limits, reaps it
    servers.py        children that compile one kernel after another
    clock.py          time as a limit counts it
    protocol.py       messages between processes, and a child's answer in a memory file
"""
