"""Data gathering: PyTorch modules in, verified (module, Triton kernels) pairs out. collect_data.py is the
entry.

compose: trace.py makes the operator graph of a module (ir.py), fuse.py cuts it into kernels, emit/ writes
each of them, compose.py joins them to a `ModelNew`. grammar.py draws modules. The other files gather,
check, split and describe what came out.
"""
