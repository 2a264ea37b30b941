"""The evidence for the laptop run: three seeds, each beside a control and beside two other uses of the time.

    python -m bench.speed.laptop main --seed 0
    python -m bench.speed.laptop rejection --seed 0
    python -m bench.speed.laptop control --seed 0
    python -m bench.speed.laptop sft --seed 0
    python -m bench.speed.laptop table --out results/laptop.json

main is what `torchrun train_grpo.py` does: SFT, then GRPO. rejection imitates the samples that are paid
instead, with the same number of samples and updates (rejection-sampling fine-tuning). control is main with
rewards shuffled within the batch. sft is --factor times the SFT steps and no GRPO, measured on the same test
tasks. table collects what has finished, and draws it.

Runs live in out/bench-ARM-SEED and continue when they are started again. No arm reads another's folder, so
all may run at once, each on cores of its own: `taskset -c 0,1 python -m bench.speed.laptop main --seed 0`.
All but sft train an SFT model of their own first, which is the same for the same seed.
"""

import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import train_grpo
import train_sft
from bench.results import environment, write_json
from nanotriton import config
from nanotriton.heldout import heldout
from nanotriton.log import smooth
from nanotriton.parallel import distributed
from nanotriton.parallel.program import launch
from nanotriton.parallel.world import World
from nanotriton.runs.run import Run, make_executor, make_sampler
from nanotriton.transformer.tokenizer import Tokenizer
from nanotriton.transformer.weights import load_model

FLAGS = {"main": [], "rejection": ["--advantage", "rejection"], "control": ["--shuffle-rewards"]}
ARMS = (*FLAGS, "sft", "table")
NAMES = {
    "main": "SFT, then GRPO",
    "rejection": "SFT, then rejection sampling",
    "control": "shuffled rewards",
    "sft": "more SFT",
}
COLORS = dict(zip(NAMES, ("C0", "C2", "C7", "C1")))
OPACITY = {"heldout": 1.0, "greedy": 0.5}
HEAD = [
    "arm",
    "seed",
    "before: sampled",
    "after: sampled",
    "gain",
    "before: greedy",
    "after: greedy",
    "SFT",
    "GRPO",
]


@dataclass
class Config:
    seed: Annotated[int, ">= 0"] = 0  # of the run
    # sft: its steps over those of the laptop run's SFT; so many take as long as SFT and GRPO
    factor: Annotated[float, "> 0"] = 2.6
    root: str = "out"  # where runs live
    out: str = "results/laptop.json"  # table: where the numbers go, and a picture of the same name
    machine: str = ""  # table: what the runs ran on, in words


def sft_arm(cfg: Config) -> None:
    """SFT for as long as SFT and GRPO take together; then the test set, drawn as train_grpo.py does it."""
    name = f"bench-sft-{cfg.seed}"
    grpo = grpo_config(name, cfg)
    usual = train_sft.small_config(grpo)
    steps = round(usual.steps * cfg.factor)
    # No pair comes twice, as the grammar has enough. The learning rate falls to 0, as nothing comes after.
    sft = replace(usual, name=name, out=cfg.root, steps=steps, examples=steps * usual.batch, min_lr=0.0)

    def run(sft: train_sft.Config, world: World) -> None:
        folder = train_sft.main(sft, world)
        tokenizer = Tokenizer(folder)
        model, model_config = load_model(folder, world.dtype, world.device)
        trace = Run(grpo_config(name + "-test", cfg), world, "grpo")
        test = train_grpo.task_sets(grpo)[2]
        with (
            make_sampler(model_config, world, tokenizer) as sampler,
            make_executor(world, cfg.seed) as executor,
        ):
            sampler.update_weights(distributed.full_params(model, world.dtype))
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
    """`torchrun train_grpo.py`, as a user runs it, with the flags of an arm."""
    folder = Path(cfg.root) / f"bench-{arm}-{cfg.seed}"
    command = ["train_grpo.py", "--name", folder.name, "--out", cfg.root, "--seed", str(cfg.seed)]
    command += FLAGS[arm]
    whole, started = not folder.exists(), time.perf_counter()
    # torchrun is started by its module, as it need not be on the PATH. With --standalone each run has its own
    # port.
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", *command])
    if done.returncode:
        raise SystemExit(done.returncode)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    trace = {"largest_process_gib": round(peak, 2), "command": " ".join(["torchrun", *command])}
    # From the command to its end, imports and data included. A run that was continued has no such number.
    if whole:
        trace["seconds_wall"] = round(time.perf_counter() - started, 1)
    (folder / "peak.json").write_text(json.dumps(trace))


def finished(root: Path) -> list[dict]:
    """A row for each run that has ended, by arm and seed."""
    rows = []
    for path in root.glob("bench-*/summary.json"):
        name = path.parent.name.removeprefix("bench-")
        arm, seed = name.removesuffix("-test").rsplit("-", 1)
        if arm == "sft" and not name.endswith("-test"):
            continue  # the training alone: its test set is in the folder bench-sft-SEED-test
        row = {"arm": arm, "run": int(seed), **json.loads(path.read_text())}
        peak = path.parent / "peak.json"
        if peak.exists():
            row |= json.loads(peak.read_text())
        rows.append(row)
    return sorted(rows, key=lambda row: (ARMS.index(row["arm"]), row["run"]))


def plus_minus(share: float, error: float) -> str:
    """A share of the samples with its standard error, which heldout.clustered_error() made."""
    return f"{share:.3f} ± {error:.3f}"


def cells(row: dict) -> list[str]:
    """The line of a run, of HEAD's form."""
    if row["arm"] == "sft":
        after, greedy = plus_minus(row["success"], row["success_se"]), f"{row['greedy']:.3f}"
        return [NAMES["sft"], str(row["run"]), "", after, "", "", greedy, f"{row['seconds']:.0f} s", ""]
    before, after = row["heldout_before"], row["heldout_after"]
    return [
        NAMES[row["arm"]],
        str(row["run"]),
        plus_minus(before, row["heldout_se_before"]),
        plus_minus(after, row["heldout_se_after"]),
        f"{after - before:+.3f}",
        f"{row['greedy_before']:.3f}",
        f"{row['greedy_after']:.3f}",
        f"{row['seconds_sft']:.0f} s",
        f"{row['seconds_grpo']:.0f} s",
    ]


def table(cfg: Config) -> None:
    """Print the summaries of all arms and seeds as a Markdown table, and write the numbers."""
    rows = finished(Path(cfg.root))
    if not rows:
        config.die(f"{cfg.root}: no finished bench-* run; run the arms {', '.join(FLAGS)} and sft first")
    for line in (HEAD, ["---"] * len(HEAD), *map(cells, rows)):
        print("| " + " | ".join(line) + " |")
    about = environment() | {
        "machine": cfg.machine,
        "command": f"python -m bench.speed.laptop {'|'.join(NAMES)} --seed S",
    }
    write_json(cfg.out, about | {"runs": rows})
    draw(rows, curves(Path(cfg.root)), Path(cfg.out).with_suffix(".png"))


def curves(root: Path) -> dict[str, list[list[float]]]:
    """By arm, for each seed: the share of right samples at each step, whose tasks were never seen before."""
    found: dict[str, list[list[float]]] = {}
    for arm in FLAGS:
        for path in sorted(root.glob(f"bench-{arm}-*/metrics.jsonl")):
            steps = [json.loads(line) for line in path.read_text().splitlines()]
            shares = [s["statuses"].get("correct", 0) / s["samples"] for s in steps if s["stage"] == "grpo"]
            found.setdefault(arm, []).append(shares)
    return found


def draw(rows: list[dict], shares: dict[str, list[list[float]]], path: Path) -> None:
    """Left: success on the fresh training tasks of each step. Right: on the test tasks, before and after."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for arm, seeds in shares.items():
        for one in seeds:
            left.plot(range(1, len(one) + 1), smooth(one), color=COLORS[arm], alpha=0.3, lw=1)
        mean = [sum(step) / len(step) for step in zip(*seeds)]
        left.plot(range(1, len(mean) + 1), smooth(mean), color=COLORS[arm], lw=2.5, label=NAMES[arm])
    left.set(xlabel="step after SFT", ylabel="share of kernels that are right")
    left.set_title("kernels written in training, each step for new tasks", fontsize=10)
    left.legend()

    labels = []
    for arm in NAMES:
        for kind in ("heldout", "greedy"):
            values = [after(row, kind) for row in rows if row["arm"] == arm]
            if values:
                at = len(labels)
                right.bar(at, sum(values) / len(values), color=COLORS[arm], alpha=OPACITY[kind])
                right.plot([at] * len(values), values, "k.", ms=5)
                labels.append(f"{NAMES[arm]}, {'sampled' if kind == 'heldout' else 'greedy'}")
    starts = [row["heldout_before"] for row in rows if row["arm"] == "main"]
    if starts:
        start = sum(starts) / len(starts)
        right.axhline(start, color="k", ls="--", lw=1, label="before: SFT alone, sampled")
        right.legend(loc="upper right")
    right.set_ylim(0, 1)
    right.set_xticks(range(len(labels)), labels, fontsize=8, rotation=25, ha="right")
    right.set_title("held-out test tasks: means of the seeds, which are the dots", fontsize=10)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def after(row: dict, kind: str) -> float:
    """A finished run's success on the test tasks: "heldout" is sampled at temperature 1, or "greedy"."""
    if row["arm"] == "sft":
        return row["success" if kind == "heldout" else "greedy"]
    return row[f"{kind}_after"]


def main(argv: list[str]) -> None:
    arm = argv[0] if argv else ""
    if arm not in ARMS and not {"-h", "--help"} & set(argv):
        config.die(f"{arm or 'nothing'}: the first word is one of {', '.join(ARMS)}")
    cfg = config.parse(Config, argv[1:] if arm in ARMS else argv)
    if arm == "table":
        table(cfg)
    elif arm == "sft":
        sft_arm(cfg)
    else:
        grpo_arm(cfg, arm)


if __name__ == "__main__":
    main(sys.argv[1:])
