"""Our own Triton kernels, each beside its torch twin: the same answer, and what runs where there is no GPU.

The model (model.py) calls layers.py. A sampler's step also calls, in this order, place.py, decode.py and
sample.py. The losses call logprob.py, and the optimizer adam8.py. launch.py has what several of them share.
"""
