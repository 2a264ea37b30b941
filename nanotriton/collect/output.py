"""The files that a run of collect_data.py leaves, and those of several runs made into one."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from nanotriton.collect import manifest, report
from nanotriton.collect.files import folder_for, put_rows, read_journal
from nanotriton.collect.filters import Duplicates
from nanotriton.collect.sets import sort


def write_sets(cfg, order: list[dict], seconds: float, length: Callable[[str], int], classes: Counter) -> str:
    """The sets, the manifest and the report of a journal's rows, into cfg.out. Returns a line about them.

    order: the rows in the order of jobs. length: a text's length in tokens. classes: what became of the
    classes of packages.
    """
    out = Path(cfg.out)
    kept, pairs = sort(order, cfg.cap_share, cfg.reasoning, cfg.rl_elements)
    for name, rows in kept.items():
        put_rows(out / f"{name}.jsonl", rows)
    put_rows(out / "manifest.jsonl", map(manifest.line, pairs))
    settings = {k: v for k, v in vars(cfg).items() if k != "out"}
    numbers = report.report(order, kept, settings, seconds, length)
    numbers["classes"] = dict(classes.most_common())
    report.write(out, numbers, kept, length)
    counts = f"{len(kept['sft'])} pairs, {len(kept['rl'])} RL tasks, {len(kept['heldout'])} held-out tasks"
    return f"{out}: {counts}; {out / 'report.md'} is the data card"


def merge(cfg) -> None:
    """One set of several output folders: cfg.merge, such as the shards of a list, or runs of several routes.

    A module that the same route went over in an earlier folder is a duplicate. A solution that is too long
    for cfg, or has too many numbers, makes no pair, and its module is an RL task. Raises ValueError (one
    line) for what is no folder of a run.
    """
    for folder in map(Path, cfg.merge):
        if not (folder / "journal.jsonl").is_file():
            raise ValueError(f"--merge {folder}: no journal.jsonl there; the folder of a run is expected")
    folder_for(cfg.out)
    duplicates: dict[str, Duplicates] = defaultdict(Duplicates)
    order = []
    seconds = 0.0
    length = token_counter(cfg.tokenizer)
    for folder in map(Path, cfg.merge):
        if (folder / "report.json").is_file():  # else the run was stopped, and its time isn't known
            seconds += json.loads((folder / "report.json").read_text())["seconds"]
        for row in read_journal(folder / "journal.jsonl").values():
            if row["status"] not in ("duplicate", "copy"):
                known = duplicates[row["meta"]["route"]]
                if repeated := known.check(f"{folder.name}: {row['key']}", row["source"]):
                    row |= {"status": "duplicate", "message": repeated}
            if row["status"] == "kept" and (why := unwieldy(cfg, row, length)):
                row |= {"status": "task", "message": why, "solution": ""}
            order.append(row)
    print(write_sets(cfg, order, seconds, length, Counter()))


def unwieldy(cfg, row: dict, length: Callable[[str], int]) -> str:
    """Why a row's solution is not worth learning from; "" if it is. length: a text's length in tokens."""
    compiled = row["meta"]["route"] == "compile"
    tokens = cfg.max_tokens or (1000 if compiled else 2000)
    literals = 0 if compiled and cfg.max_literals is None else cfg.max_literals
    if row["solution"] and length(row["solution"]) > tokens:
        return f"a solution of more than {tokens} tokens"
    if row["solution"] and literals is not None and row["meta"]["literals"] > literals:
        return f"a solution with more than {literals} numbers that nothing explains"
    return ""


def token_counter(folder: str) -> Callable[[str], int]:
    """A text's length in tokens of a tokenizer; without one, in words and marks, of which a code tokenizer
    makes about as many tokens.
    """
    if not folder:
        pattern = re.compile(r"\n +|\w+|[^\w\s]")
        return lambda text: len(pattern.findall(text))
    from nanotriton.transformer.tokenizer import Tokenizer

    tokenizer = Tokenizer(folder)
    return lambda text: len(tokenizer.encode(text))
