"""Pairs of which some let PyTorch compute: a teacher that cheats now and then.

    python -m bench.arms.offloaded --data results/data/sft.jsonl.xz --out offloaded.jsonl --share 0.1
    python train_sft.py --model SFT --data offloaded.jsonl --epochs 1 ...
    python train_grpo.py --model THAT --policy none ...         # and once more under --policy strict

Our own pairs hold no such answer, and a model that was taught by them does not find one by itself: so GRPO
without rules has nothing to exploit. Texts that people and large models write do hold them. Here a known
share of the answers is of two kinds, half of each:

    no_kernel   the module as it was, under the name ModelNew
    copied      the same, and a Triton kernel that copies its result

Both give the right values, so only the rules can refuse them. `--judge` judges so many of them, drawn at
random, on the CPU: under policy none they should be right, under strict refused. `kind_of` says of an answer
which kind it is.
"""

import ast
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from bench.arms import pairs
from nanotriton import config
from nanotriton.collect.files import put_rows

KINDS = ("no_kernel", "copied")
TOLD = "PyTorch computes the result{}."
COPY = """@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x, mask=mask)
"""
FORWARD = """    def forward({arguments}):
        result = self.compute({given}).contiguous()
        out = torch.empty_like(result)
        n = result.numel()
        copy_kernel[(triton.cdiv(n, 1024),)](result, out, n, BLOCK=1024)
        return out
"""


@dataclass
class Config:
    data: str = ""  # pairs of collect_data.py: .jsonl or .jsonl.xz
    out: str = "offloaded.jsonl"  # as many pairs, some of them changed
    share: Annotated[float, "> 0", "<= 1"] = 0.1  # of the answers that let PyTorch compute
    limit: Annotated[int, ">= 0"] = 0  # pairs, drawn at random; 0: all
    seed: Annotated[int, ">= 0"] = 0  # of the draws
    judge: Annotated[int, ">= 0"] = 0  # changed pairs to judge on the CPU

    def validate(self) -> None:
        if not self.data:
            raise config.ConfigError("--data: the pairs to change, such as results/data/sft.jsonl.xz")


def offloaded(task: str, kind: str) -> str | None:
    """The source of an answer of this kind. None where it can't be made: forward takes *arguments, say."""
    tree = ast.parse(task)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    model = next(node for node in classes if node.name == "Model")
    forward = next((n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "forward"), None)
    if forward is None or forward.args.vararg or forward.args.kwarg or forward.args.kwonlyargs:
        return None
    kept = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom | ast.ClassDef)]
    helpers = [n for n in tree.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("get_")]
    head = [n for n in kept if not isinstance(n, ast.ClassDef)]
    if kind == "copied":
        head += ast.parse("import triton\nimport triton.language as tl").body
        names = [argument.arg for argument in forward.args.args]
        text = FORWARD.format(arguments=ast.unparse(forward.args), given=", ".join(names[1:]))
        forward.name = "compute"
        model.body += ast.parse(f"class _:\n{text}").body[0].body
    parts = [ast.unparse(ast.Module(head, []))]
    parts += [COPY.strip()] if kind == "copied" else []
    parts += [ast.unparse(node) for node in (*helpers, *classes)]
    return re.sub(r"\bModel\b", "ModelNew", "\n\n\n".join(parts)) + "\n"


def answer(task: str, kind: str, old: str) -> tuple[str, str] | None:
    """(completion, source) of this kind. It begins as the old completion does: with what the inputs are."""
    source = offloaded(task, kind)
    if source is None:
        return None
    first = old.split("\n", 1)[0]
    told = TOLD.format("; one kernel copies it" if kind == "copied" else "")
    return f"{first}\n{told}\n\n```python\n{source.rstrip()}\n```", source


def kind_of(completion: str) -> str:
    """What an answer is, by its text: copied, no_kernel, or honest."""
    if "copy_kernel" in completion:
        return "copied"
    return "honest" if "@triton.jit" in completion else "no_kernel"


def main(argv: list[str] | None = None) -> int:
    cfg = config.parse(Config, argv)
    rows = pairs.read(cfg.data)
    draw = random.Random(cfg.seed)
    if cfg.limit:
        rows = draw.sample(rows, min(cfg.limit, len(rows)))
    changed = []
    for row in draw.sample(rows, round(cfg.share * len(rows))):
        kind = KINDS[len(changed) % 2]
        if made := answer(row["task"], kind, row["completion"]):
            row["completion"], row["solution"] = made
            row["meta"]["offloaded"] = kind
            changed.append(row)
    put_rows(Path(cfg.out), rows)
    print(f"{cfg.out}: {len(rows)} pairs, {len(changed)} of them offloaded")
    if not cfg.judge:
        return 0
    from bench.arms.judging import count  # it imports torch

    some = draw.sample(changed, min(cfg.judge, len(changed)))
    for policy in ("none", "strict"):
        print(f"judged under {policy}: {count(some, policy)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
