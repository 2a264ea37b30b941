"""Pairs whose kernels are launched in block sizes and numbers of warps that were drawn.

    python -m bench.arms.launches --data results/data/sft.jsonl.xz --out varied.jsonl
    python train_sft.py --model SFT --data varied.jsonl --epochs 1 ...
    python train_grpo.py --model THAT --speed 1 ...

The composer launches every element-wise kernel in blocks of 1,024 and every matrix product in tiles of
64 x 64 x 32. A model that was taught by it writes nothing else, so all right answers to a task are equally
fast, and speed in the reward has nothing to choose from. After these pairs the model tries many launches, and
GRPO finds the fast ones.

Each launch is drawn by itself. A block is 1/4 to 4 times what it was. A tile has 16 to 128 rows and columns,
at most 8,192 elements, and sums over 16 to 64 at a time. There are 1 to 8 warps. Launches of other forms
stay as they are. What a kernel computes does not depend on these numbers, up to rounding. `--judge` judges so
many pairs, drawn at random, on the CPU.
"""

import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from bench.arms import pairs
from nanotriton import config
from nanotriton.collect.files import put_rows

# a line of a module's forward: NAME[GRID](ARGUMENTS)
LAUNCH = re.compile(r"^(?P<start> +\w+)\[(?P<grid>.+)\]\((?P<arguments>.*)\)$", re.M)
BLOCK = re.compile(r"\bBLOCK=(\d+)$")
TILE = re.compile(r"\bBLOCK_M=(\d+), BLOCK_N=(\d+), BLOCK_K=(\d+)$")
TILES = [(m, n) for m in (16, 32, 64, 128) for n in (16, 32, 64, 128) if m * n <= 8192]
WARPS = (1, 2, 4, 8)


@dataclass
class Config:
    data: str = ""  # pairs of collect_data.py: .jsonl or .jsonl.xz
    out: str = "varied.jsonl"  # the same pairs, launched otherwise
    seed: Annotated[int, ">= 0"] = 0  # of the draws
    judge: Annotated[int, ">= 0"] = 0  # pairs to judge on the CPU

    def validate(self) -> None:
        if not self.data:
            raise config.ConfigError("--data: the pairs to change, such as results/data/sft.jsonl.xz")


def varied(solution: str, draw: random.Random) -> str:
    """A solution in which every launch has sizes of its own."""
    return LAUNCH.sub(lambda found: launch(found, draw), solution)


def launch(found: re.Match, draw: random.Random) -> str:
    """One launch with other sizes; as it was if it has another form."""
    start, grid, arguments = found["start"], found["grid"], found["arguments"]
    if block := BLOCK.search(arguments):
        old = int(block[1])
        new = draw.choice([old // 4, old // 2, old, old * 2, old * 4])
        grid = grid.replace(f", {old})", f", {new})")
        sizes = f"BLOCK={new}"
    elif (block := TILE.search(arguments)) and (cut := two_cuts(grid, block[1], block[2])):
        m, n = draw.choice(TILES)
        grid = f"{cut[1]}{m}{cut[2]}{n}{cut[3]}"
        sizes = f"BLOCK_M={m}, BLOCK_N={n}, BLOCK_K={draw.choice((16, 32, 64))}"
    else:
        return found[0]
    warps = draw.choice(WARPS)
    return f"{start}[{grid}]({arguments[: block.start()]}{sizes}, num_warps={warps})"


def two_cuts(grid: str, rows: str, columns: str) -> re.Match | None:
    """A grid that divides rows and columns by the tile: the text before, between and after the two sizes."""
    return re.fullmatch(rf"(\(triton\.cdiv\(\w+, ){rows}(\), triton\.cdiv\(\w+, ){columns}(\).*)", grid)


def main(argv: list[str] | None = None) -> int:
    cfg = config.parse(Config, argv)
    rows = pairs.read(cfg.data)
    changed = 0
    for number, row in enumerate(rows):
        old = row["solution"]
        row["solution"] = varied(old, random.Random(f"launches {cfg.seed} {number}"))
        row["completion"] = row["completion"].replace(old.rstrip(), row["solution"].rstrip())
        changed += row["solution"] != old
    put_rows(Path(cfg.out), rows)
    print(f"{cfg.out}: {len(rows)} pairs, {changed} of them launched otherwise")
    if not cfg.judge:
        return 0
    from bench.arms.judging import count  # it imports torch

    found = count(random.Random(cfg.seed).sample(rows, min(cfg.judge, len(rows))), "strict")
    print(f"judged under strict: {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
