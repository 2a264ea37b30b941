"""Our own Triton kernels, each beside its torch twin: the same answer, and what runs where there is no GPU.

    layers.py        RMSNorm and SwiGLU, for the model (transformer/model.py)
    heads.py         the heads of q and k, normed and rotated, for the model
    place.py         the same for a sampler's step, which also fills the cache
    decode.py        attention of a sampler's step
    decode_twin.py   its torch twin
    sample.py        the draw of a sampler's step
    logprob.py       logprobs of hidden states, for the losses
    adam8.py         the optimizer with moments of 8 bits
    launch.py        what several of them share

Who may import it. `transformer`, `sampler`, `parallel` and data.py may. It imports nothing else of ours.
"""
