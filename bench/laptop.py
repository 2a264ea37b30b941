"""The evidence for the laptop run: three seeds, each beside a control and beside the same time spent on more SFT.

    python -m bench.laptop main --seed 0                # SFT, then GRPO: what `torchrun train_grpo.py` does
    python -m bench.laptop control --seed 0             # the same, with rewards shuffled within the batch
    python -m bench.laptop sft --seed 0                 # `factor` times the SFT steps and no GRPO, on the same test tasks
    python -m bench.laptop table --out results/laptop.json

Runs live in out/bench-ARM-SEED and continue when started again. No arm reads another's folder, so all may run at once, each
on cores of its own: `taskset -c 0,1 python -m bench.laptop main --seed 0`. The control trains its own SFT model, which one
seed makes the same.
"""

import json
import math
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import train_grpo
import train_sft
from bench import environment
from nanotriton import config, distributed
from nanotriton.run import Run, heldout, launch, make_executor, make_sampler
from nanotriton.tokenizer import Tokenizer
from nanotriton.weights import load_model
from nanotriton.world import World


@dataclass
class Config:
    seed: Annotated[int, ">= 0"] = 0  # of the run
    # sft arm: its steps, in those of the laptop run's SFT; 9 take as long as SFT and GRPO
    factor: Annotated[float, "> 0"] = 9.0
    root: str = "out"  # where runs live
    out: str = "results/laptop.json"  # table: where the numbers go
    machine: str = ""  # table: what the runs ran on, in words


def sft_arm(cfg: Config) -> None:
    """SFT for as long as SFT and GRPO take together; then the test set, drawn and sampled as train_grpo.py does."""
    name = f"bench-sft-{cfg.seed}"
    steps = round(train_sft.Config.steps * cfg.factor)
    # never the same pair twice: the grammar has more, and so has a user who could write them
    # and annealed to the end, as there is nothing to come
    sft = train_sft.Config(
        name=name,
        out=cfg.root,
        seed=cfg.seed,
        steps=steps,
        examples=steps * train_sft.Config.batch,
        min_lr=0.0,
    )
    grpo = train_grpo.Config(seed=cfg.seed)

    def run(sft: train_sft.Config, world: World) -> None:
        folder = train_sft.main(sft, world)
        tokenizer = Tokenizer(folder)
        model, model_config = load_model(folder, world.dtype, world.device)
        trace = Run(grpo_config(name + "-test", cfg), world, "grpo")
        test = train_grpo.task_sets(grpo)[2]
        sampler = make_sampler(model_config, world, tokenizer)
        sampler.update_weights(distributed.full_params(model, world.dtype))
        with make_executor(world, cfg.seed) as executor:
            result = heldout(
                trace,
                test,
                step=0,
                split="test",
                sampler=sampler,
                executor=executor,
                tokenizer=tokenizer,
                max_tokens=grpo.max_tokens,
                seed=cfg.seed,
            )
        trace.summary(
            **result,
            seed=cfg.seed,
            seconds=json.loads((Path(cfg.root) / name / "summary.json").read_text())["seconds"],
        )

    launch(run, sft)


def grpo_config(name: str, cfg: Config) -> train_grpo.Config:
    return train_grpo.Config(name=name, out=cfg.root, seed=cfg.seed)


def grpo_arm(cfg: Config, arm: str) -> None:
    """`torchrun train_grpo.py`, as a user runs it."""
    folder = Path(cfg.root) / f"bench-{arm}-{cfg.seed}"
    command = ["train_grpo.py", "--name", folder.name, "--out", cfg.root, "--seed", str(cfg.seed)]
    command += ["--shuffle-rewards"] if arm == "control" else []
    whole, started = not folder.exists(), time.perf_counter()
    # torchrun by its module, as it need not be on the PATH; --standalone, so that two never want the same
    # port
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", *command])
    if done.returncode:
        raise SystemExit(done.returncode)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    trace = {"largest_process_gib": round(peak, 2), "command": " ".join(["torchrun", *command])}
    # from the command to its end, imports and data included; a run that was continued has no such
    # number
    if whole:
        trace["seconds_wall"] = round(time.perf_counter() - started, 1)
    (folder / "peak.json").write_text(json.dumps(trace))


def table(cfg: Config) -> None:
    """Collect the summaries of all arms and seeds; print a Markdown table and write the numbers."""
    rows = []
    for path in sorted(Path(cfg.root).glob("bench-*/summary.json")):
        arm, seed = path.parent.name.removeprefix("bench-").rsplit("-test", 1)[0].rsplit("-", 1)
        data = json.loads(path.read_text())
        if arm == "sft" and not path.parent.name.endswith("-test"):
            continue
        peak = path.parent / "peak.json"
        rows.append(
            {"arm": arm, "run": int(seed), **data, **(json.loads(peak.read_text()) if peak.exists() else {})}
        )
    if not rows:
        config.die(f"{cfg.root}: no finished bench-* run; run the arms main, control and sft first")
    error = lambda p, n: math.sqrt(p * (1 - p) / max(n, 1))
    print(
        "| arm | seed | before: sampled | after: sampled | gain | before: greedy | after: greedy | SFT | GRPO |\n|---|---|---|---|---|---|---|---|---|"
    )
    for r in sorted(rows, key=lambda r: (["main", "control", "sft"].index(r["arm"]), r["run"])):
        if r["arm"] == "sft":
            print(
                f"| more SFT | {r['run']} | | {r['success']:.3f} ± {error(r['success'], r['success_n']):.3f} | | | {r['greedy']:.3f} | {r['seconds']:.0f} s | |"
            )
        else:
            n, b, a = r["heldout_samples"], r["heldout_before"], r["heldout_after"]
            name = "SFT, then GRPO" if r["arm"] == "main" else "shuffled rewards"
            print(
                f"| {name} | {r['run']} | {b:.3f} ± {error(b, n):.3f} | {a:.3f} ± {error(a, n):.3f} | {a - b:+.3f} | {r['greedy_before']:.3f} | "
                f"{r['greedy_after']:.3f} | {r['seconds_sft']:.0f} s | {r['seconds_grpo']:.0f} s |"
            )
    path = Path(cfg.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            {
                **environment(),
                "machine": cfg.machine,
                "command": "python -m bench.laptop main|control|sft --seed S",
                "runs": rows,
            },
            indent=2,
        )
        + "\n"
    )


ARMS = ("main", "control", "sft", "table")

if __name__ == "__main__":
    arm: Literal["main", "control", "sft", "table"] | str = sys.argv[1] if len(sys.argv) > 1 else ""
    if arm not in ARMS and not {"-h", "--help"} & set(sys.argv):
        config.die(f"{arm or 'nothing'}: the first word is one of {', '.join(ARMS)}")
    cfg = config.parse(Config, sys.argv[2:] if arm in ARMS else sys.argv[1:])
    {
        "main": lambda: grpo_arm(cfg, "main"),
        "control": lambda: grpo_arm(cfg, "control"),
        "sft": lambda: sft_arm(cfg),
        "table": lambda: table(cfg),
    }[arm]()
