"""Route compile: the Triton that Inductor writes for a module, as plain text that a person would write.

inductor.py is the whole way. emit.py has Inductor write the code, without a GPU. host.py and sizes.py turn
the host's side into the lines of a forward. kernel.py rewrites a kernel, with rewrite.py for its expressions,
lines.py for their order, tiles.py for matrix products, and names.py for names that mean something.
"""
