"""The life of one candidate in a worker, from its text to its verdict.

Whatever needs a child, a compiler or a replay is here: `trials/` has what is asked of its answers.

    candidate.py    the spine: rules, recording, trials, further calls, timing, ablation
    job.py          a candidate on its way, the child that it waits for, and what a child's end means
    recording.py    a recording, asked of a child and read as a stranger's bytes
    runner.py       a plan as something that a trial can run, on the CPU
    gpu_runner.py   the same on a GPU
    fits.py         whether kernels fit on the card, where there is none
    ablation.py     how many launches matter
    measure.py      how fast a right candidate is
    hints.py        what to change, at the end of a message
    process.py      the trusted half of process mode
    script.py       the trusted half of whole files that run their own tests
"""
