"""The search for one task's kernel: what sample.py does.

    search.py    candidates are written and judged, and written again with what was wrong
    writers.py   who writes them: a model with our own sampler, or a server

Who may import it. sample.py and the benchmarks may, and no other file of the package.
"""
