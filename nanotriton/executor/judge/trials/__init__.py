"""A candidate is run and compared: on one trial, and in further calls of the same module.

The candidate is a function here. Whether its plan is replayed, on which device, or whether it runs for
real, is the business of `candidate/`.

    trial.py             one trial: the candidate runs, then the reference, then they are compared
    fairness.py          what the reference is sensitive to is forgiven
    faint.py             weights and inputs whose effect is smaller than the tolerance: is it there?
    unread.py            data that was never looked at: does the reference need it?
    calls.py             further calls of the same module: their answers, and the state that both leave
    reference_calls.py   the same calls, made of the reference
    between.py           other weights between two calls
    memory.py            whose memory an answer lies in, and whether a later call overwrites it
    configurations.py    the other configurations of autotuned kernels, on a CPU
    tuning.py            an autotuned kernel, after its tuner's runs
"""
