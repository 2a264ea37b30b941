"""The replay of a plan on real data. Trusted code in the worker's process.

It believes nothing of a plan but that it passed `Plan.validate`, and it never runs a candidate's Python.
The judge and the GPU's backend import it.

    replayer.py    a plan's steps on a device
    backend.py     memory and kernels of a device; the CPU's
    operators.py   ATen operators, run as torch would run them
"""
