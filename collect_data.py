"""Data gathering: PyTorch modules in; verified pairs for SFT, tasks for RL and held-out tasks out.

    python collect_data.py --count 2000 --out data
    python collect_data.py --route compile --modules CLONE --count 300 --out data
    python collect_data.py --route distil --endpoint http://host:8000/v1 --modules FOLDER --out data
    python collect_data.py --verify later --count 4000 --out emitted
    python collect_data.py --modules emitted/candidates.jsonl --verify cuda --out data
    python collect_data.py --merge composed compiled --cap-share 0.05 --out data
    python collect_data.py --from MANIFEST --out data

The first draws modules from a grammar, composes their kernels and verifies them on the CPU. The second has
Inductor write the Triton for people's modules, without a GPU; the third asks a teacher. The fourth and the
fifth make candidates here and verify them where a GPU is. The sixth makes one set of several runs; the last
makes a committed set again.

--modules takes task files and folders, .jsonl with rows of {pytorch_code, triton_code}, a clone of
pytorch-jit-paritybench, and names of installed packages. --exclude names folders of benchmarks of which
nothing may come in. The output folder gets sft.jsonl, rl.jsonl, heldout.jsonl, manifest.jsonl, report.md and
report.json. The same command continues a run that was stopped; --shard 2/8 does the second of eight parts.
"""

import nanotriton  # first, because it says what is supported where something is missing  # noqa: F401

# isort: split

import re
import sys
from dataclasses import dataclass, field
from typing import Annotated, Literal

from nanotriton import config


@dataclass
class Config:
    out: str = "data"  # folder for what is made
    # who writes the Triton: the composer, Inductor, a teacher; with two, a pair of each that can
    route: list[Literal["compose", "compile", "distil"]] = field(default_factory=lambda: ["compose"])
    # task files, folders, .jsonl, a paritybench clone, packages; empty: the grammar
    modules: list[str] = field(default_factory=list)
    # pairs wanted of the grammar; with --modules how many modules to take (of a clone a fair sample), 0: all
    count: Annotated[int, ">= 0"] = 2000
    # where candidates are executed; later: they are only made
    verify: Literal["cpu", "cuda", "later"] = "cpu"
    exclude: list[str] = field(default_factory=list)  # folders of benchmarks whose problems must not come in
    # also leave out modules with a benchmark problem's operators and other shapes
    strict_decontamination: bool = False
    # largest share of the SFT pairs that one operator may be in; what is over it stays in the journal
    cap_share: Annotated[float, "> 0", "<= 1"] = 1.0
    reasoning: bool = True  # put a short account of the kernel before the code
    rl_share: Annotated[float, ">= 0"] = 0.35  # RL tasks without a solution for each pair, of the grammar
    # elements of the inputs, weights and answer of an RL or held-out task, and of a pair that a GPU verifies:
    # the sizes are brought down to that, so that judging takes milliseconds; 0: as they are
    rl_elements: Annotated[int, ">= 0"] = 1 << 20
    # longest solution that makes a pair; none: 2000 tokens, of route compile 1000
    max_tokens: Annotated[int, ">= 1"] | None = None
    # most numbers in it that neither the task nor a definition has; none: any, of route compile 0
    max_literals: Annotated[int, ">= 0"] | None = None
    max_chars: Annotated[int, ">= 1"] = 6000  # longest module that is taken from --modules
    tokenizer: str = ""  # folder of the tokenizer that lengths are counted with; empty: words and marks
    endpoint: str = ""  # of --route distil: base URL of an OpenAI-compatible server
    model: str = ""  # of --route distil: the teacher's name there; empty: the first that the server lists
    key_env: str = "OPENAI_API_KEY"  # of --route distil: environment variable with the server's key, if any
    merge: list[str] = field(default_factory=list)  # output folders of runs, of which one set is made
    # rebuild the pairs that this manifest lists, without verifying them again; also spelt --from
    manifest: str = ""
    attempts: Annotated[int, ">= 1"] = 4  # of --route distil: answers asked for each module
    shard: str = "1/1"  # which part of how many of the list is done here
    seed: Annotated[int, ">= 0"] = 0  # of the grammar's draws
    workers: Annotated[int, ">= 0"] = 0  # processes that make and verify; 0: as many as there are cores
    timeout: Annotated[float, "> 0"] = 20.0  # seconds for each stage of a candidate

    def validate(self) -> None:
        found = re.fullmatch(r"(\d+)/(\d+)", self.shard)
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            raise config.ConfigError(f"--shard {self.shard}: K/N is expected, with 1 <= K <= N")
        if not self.route or len(set(self.route)) < len(self.route):
            raise config.ConfigError("--route: each of compose, compile, distil at most once is expected")
        if "distil" in self.route and len(self.route) > 1:
            raise config.ConfigError("--route distil goes alone: run it on what the others leave in rl.jsonl")
        if self.route == ["distil"] and not self.endpoint:
            raise config.ConfigError(
                "--route distil: --endpoint URL of an OpenAI-compatible server is needed"
            )
        if self.route == ["distil"] and not self.modules:
            raise config.ConfigError("--route distil: --modules PATH is needed")
        if self.merge and self.manifest:
            raise config.ConfigError("--merge and --from: one of them at a time is expected")


if __name__ == "__main__":
    # no field of a class can be called from
    arguments = [re.sub(r"^--from\b", "--manifest", a) for a in sys.argv[1:]]
    # before torch is imported: --help and a mistake are answered at once
    options = config.parse(Config, arguments)

    from nanotriton.collect.manifest import rebuild
    from nanotriton.collect.output import merge
    from nanotriton.collect.pipeline import Pipeline
    from nanotriton.parallel.program import users

    try:
        if options.manifest:
            rebuild(options)
        elif options.merge:
            merge(options)
        else:
            Pipeline(options).run()
    except ValueError as error:
        config.die(error)
    except OSError as error:  # a full disk, or a folder that can't be written to
        if line := users(error):
            config.die(line)
        raise
