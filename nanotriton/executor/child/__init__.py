"""The child: the process in which a candidate's Python runs. UNTRUSTED from the candidate's first line on.

Who runs here. A candidate runs here, in a process that is used once. A zygote (sandbox/zygote.py) forks it,
takes away files, network, other processes and, except in process mode, the GPU. Then it calls one of the
targets below. The recorder, the tape and the fakes of torch and Triton are our code, but they lie in the
same memory as the candidate, which may change any of them.

What it trusts. It trusts its arguments, which a worker wrote. Nobody trusts it: its answer is bytes from a
stranger, and the worker checks them as such. So a forged plan gains no more than an honest one with the
same steps.

Who may import it. `judge/start.py` may, to name the targets and to warm up before the first fork; so may
`judge/candidate/process.py` and `judge/candidate/script.py`, for constants. It imports `plan`,
`executor.common` and `executor.sandbox`, and nothing of `judge`, `gpu` or `replay`: a child inherits the
memory that it was forked from, so the code here knows no reference, no seed and no answer.

    record.py        target of replay mode: record the candidate, hand the plan over
    recorder.py      import the file, build ModelNew, run forward on tensors without data
    modules.py       how modules are built, and how their weights go to the GPU
    calls.py         the calls of one module that are recorded
    stages.py        where the candidate's own code runs, and what becomes of its errors
    effects.py       what a candidate leaves changed in the process
    quiet.py         torch, unseen by our modes
    tape.py          the plan under construction, and which tensors are "on the GPU" in it
    fake_torch.py    PyTorch without a GPU: every ATen call is written down
    fake_card.py     what torch says of the GPU's properties and of its memory
    fake_cuda.py     torch.cuda and its relatives: questions about the GPU have answers
    streams.py       streams and events; work that nobody waits for
    addresses.py     what data_ptr() answers
    operators.py     operators that a candidate registers with torch.library
    fake_triton.py   Triton without a GPU: every launch is lowered to TTIR and written down
    process.py       target of process mode: run the candidate for real, on a GPU
    script.py        target for whole files with tests of their own
"""
