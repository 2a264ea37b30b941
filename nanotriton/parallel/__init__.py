"""One process or many that train one model: how they begin, share, save and end together.

    program.py       the start and the end of a script, in every process
    world.py         the ranks, and the operations that they do together
    distributed.py   a model in shards, its microbatches, its optimizer
    checkpoint.py    what each rank writes, so that any number of ranks can continue
    watch.py         a rank that fails ends the others, with a line that says why
    stop.py          a signal ends all ranks, after they have saved

Who may import it. The scripts, the training files above this folder and `runs` may. It imports
`transformer`, `kernels` and config.py, and of the executor the number of cores.
"""
