"""Our own Triton kernels, each beside its torch twin: the same answer, and what runs where there is no GPU.

The model (model.py) calls layers.py and heads.py. A sampler's step calls place.py instead of heads.py, and
then decode.py and sample.py. The losses call logprob.py, and the optimizer adam8.py. launch.py has what
several of them share.
"""
