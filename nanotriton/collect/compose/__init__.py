"""Route compose: a module in, a `ModelNew` in Triton out, as a person would write it.

trace.py makes the operator graph of a module (ir.py), with the operators of operators.py (element-wise),
lower.py and losses.py (spelt as maps and reductions), anchors.py (kernels of their own) and layouts.py (other
shapes). fuse.py cuts the graph into kernels, emit/ writes each of them with the names of names.py, and
compose.py joins them. reasoning.py tells what was done.
"""
