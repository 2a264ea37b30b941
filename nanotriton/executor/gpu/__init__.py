"""The GPU: from TTIR to machine code, memory that can be watched, and a stopwatch that cannot be fooled.

Who runs here. A worker that owns a CUDA context does, and so do compile servers, which are sandboxed
children without one. The worker launches only kernels that a compile server made from a validated plan.

What it trusts. It trusts nothing that a kernel does. A kernel can turn any integer into a pointer, so a
worker keeps nothing on the GPU that is worth finding. While a candidate is judged, its worker has only the
candidate's inputs and weights there, and one arena. The arena holds the candidate's own buffers between
guard zones and is poisoned before every run. The reference's answer is computed afterwards, and wiped or
locked away before the next run. A kernel may still break its CUDA context. Then the worker ends, the
candidate has its verdict, and the other candidates of that worker are judged again.

Who may import it. `judge` and the benchmarks may. It imports `plan`, `verdict`, `vmm` and, of the executor,
`common`, `sandbox`, `ttir` and `replay`.

    first_launch.py     what Triton does once in a process, done before children of process mode are forked
    gpu.py              what a worker has on its GPU
    vault.py            what candidates share, in memory that is not there while their kernels run
    arena.py            the backend of a replay: one arena with guard zones
    driver.py           the CUDA driver by ctypes: load a cubin, launch it
    ask.py              which GPU there is, and whether Triton compiles for it
    stages.py           Triton's compiler from TTIR to a cubin, without its cache and without torch
    compiler.py         TTIR to cubin, and the cache of both
    compile_server.py   the program of a compile server
    libdevice.py        CUDA's math library, linked quickly
    halves.py           launches in two halves, for kernels whose programs may see each other's work
    timing.py           the stopwatch
    locks.py            how the workers of a GPU take turns
"""
