"""Speed and quality, measured. A benchmark lies where its question belongs:

    channels/   How good is a model at KernelBench and TritonBench?
    speed/      How fast and how exact are the model, the sampler and training?
    executor/   Is the executor right, safe and fast, and does its clock repeat?

Each is run as a module, such as `python -m bench.speed.decode --out decode.json`; `--help` lists its options.
What all of them write beside their figures is in results.py. The three folders do not import one another.
"""

import sys
from pathlib import Path

from bench.help import page
from nanotriton.config import die

# The benchmarks that lay in bench/ itself once, by the folder that they are in now.
MOVED = {
    "channels": "agreement compare contamination eval_throughput kernelbench published report tritonbench",
    "speed": "decode laptop layers load logprob mismatch sampling training",
    "executor": "exploits recordability soak timing weak_tasks",
}
SUCCESSORS = {f"bench.{name}": f"bench.{folder}.{name}" for folder in MOVED for name in MOVED[folder].split()}
SUCCESSORS["bench.executor_throughput"] = "bench.executor.throughput"

# While Python looks for the module that its option -m names, argv[0] is "-m"; this package is imported then.
if sys.argv[:1] == ["-m"] and "-m" in sys.orig_argv:
    wanted = sys.orig_argv[sys.orig_argv.index("-m") + 1]
    if wanted in SUCCESSORS:
        die(f"python -m {wanted} is python -m {SUCCESSORS[wanted]} now")
    file = Path(__file__).parents[1].joinpath(*wanted.split(".")).with_suffix(".py")
    if {"-h", "--help"} & set(sys.argv[1:]) and file.is_file():
        print(page(wanted, file))
        raise SystemExit(0)
