"""The sampler: a model writes many completions at once.

    sampler.py     the loop: admit, prefill, decode, hand out what is finished
    scheduler.py   who runs in the next step, and in which pages
    kv_cache.py    pages of keys and values, and how a forward fills them
    graphs.py      what a decode step reads, and its CUDA graphs

Who may import it. Whoever lets a model write may: rollout.py, heldout.py, trainer.py, complete.py, `runs`
and `search`. All they need of it is sampler.py. It imports `transformer`, `kernels`, config.py and vmm.py.
"""
