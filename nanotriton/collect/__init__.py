"""Data gathering: PyTorch modules in, verified (module, Triton kernels) pairs out. collect_data.py is the
entry, and pipeline.py the whole run.

Where modules come from:
    grammar/          draws them
    sources.py        reads them
    extract.py        finds them in packages
    paritybench.py    finds them in the tests of pytorch-jit-paritybench

Who writes the Triton (--route):
    compose/          our composer
    compile/          Inductor
    distil.py         a teacher behind an endpoint

What becomes of a candidate:
    make.py           it is made, in a pool of processes
    fingerprint.py    what a module is, whatever it is called
    filters.py        nothing comes in twice, and nothing of a benchmark
    verify.py         it is executed, twice
    split.py, sets.py    is it a pair for SFT, a task for RL, held out, or nothing?
    pairs.py, output.py  the lines and the files of the sets
    report.py         the card that describes them
    manifest.py       a set as a list of what makes it, so that it can be made again
    files.py          files that outlive a kill
"""
