"""Does a text contain a gold solution? By n-grams of normalised Python tokens.

    python -m bench.contamination --gold FOLDER_OR_FILE.py --data FILE.jsonl [--out hits.json]

Comments, docstrings and layout are dropped, and every name that the code itself binds becomes one symbol, so that renaming hides nothing. A
gold solution is contained to the share of its n-grams that the text has too; n-grams that several gold solutions share (boilerplate) do not
count. Every JSON string in --data that holds a fenced Python block or parses as Python is looked at.
"""

import ast
import io
import json
import keyword
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from bench.sources import read_jsonl
from nanotriton import config, log
from nanotriton.rules.extract import parse, python_blocks
from nanotriton.tasks.tritonbench import SEPARATOR

N = 16  # tokens of an n-gram
FLAG = 0.5  # a gold solution of which so much is there is flagged
COMMON = 3  # gold solutions that share an n-gram for it to be boilerplate
LAYOUT = frozenset(
    [
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    ]
)


def tokens(code: str) -> list[str]:
    """Normalised tokens: names that the code binds are "v", strings "s", layout is gone. Of code that is no Python, words as they are."""
    try:
        tree = parse(code)
        found = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (SyntaxError, tokenize.TokenError):
        return code.split()
    bound = set()
    documentation = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            documentation |= {(node.lineno, node.col_offset)}
    result = []
    previous = ""
    for token in found:
        if token.type in LAYOUT or token.start in documentation:
            continue
        text = token.string
        if token.type == tokenize.NAME and not keyword.iskeyword(text) and text in bound and previous != ".":
            text = "v"
        elif token.type == tokenize.STRING:
            text = "s"
        result.append(text)
        previous = token.string
    return result


def ngrams(code: str, n: int = N) -> set[int]:
    """Hashes of the code's n-grams; of shorter code, of the whole. Within one process only: Python salts them."""
    words = tokens(code)
    return {hash(tuple(words[i : i + n])) for i in range(max(1, len(words) - n + 1))} if words else set()


class Golds:
    """Gold solutions by name, indexed."""

    def __init__(self, golds: dict[str, str], n: int = N):
        self.n = n
        grams = {name: ngrams(code, n) for name, code in golds.items()}
        common = {
            g for g, count in Counter(g for found in grams.values() for g in found).items() if count >= COMMON
        }
        self.own = {name: found - common or found for name, found in grams.items()}

    def contained(self, code: str) -> dict[str, float]:
        """{name of a gold solution: share of it that is in `code`}, largest first, nothing for those that share nothing."""
        grams = ngrams(code, self.n)
        shares = {name: len(own & grams) / len(own) for name, own in self.own.items() if own and own & grams}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))


def snippets(value) -> Iterator[str]:
    """The pieces of Python in a JSON value."""
    if isinstance(value, str):
        if blocks := python_blocks(value):
            yield from blocks
        elif "\n" in value:
            yield value
    elif isinstance(value, dict | list):
        for v in value.values() if isinstance(value, dict) else value:
            yield from snippets(v)


@dataclass
class Config:
    gold: list[str] = field(default_factory=list)  # gold solutions: Python files, or folders of them
    data: list[str] = field(default_factory=list)  # JSONL files: training data or candidates
    n: Annotated[int, ">= 1"] = N  # tokens of an n-gram
    # the share of a gold solution from which on an entry is flagged
    flag: Annotated[float, "> 0", "<= 1"] = FLAG
    out: str = ""  # JSON file for the hits; empty: print only


def main() -> None:
    cfg = config.parse(Config)
    if not cfg.gold or not cfg.data:
        config.die("give --gold FOLDER and --data FILE.jsonl")
    golds: dict[str, str] = {}
    try:
        for path in map(Path, cfg.gold):
            files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
            # without TritonBench's tests
            golds |= {str(f): SEPARATOR.split(f.read_text(encoding="utf-8"))[0] for f in files}
        rows = [(file, i, row) for file in cfg.data for i, row in enumerate(read_jsonl(file), 1)]
    except OSError as error:
        config.die(f"--gold {error.filename}: cannot read: {error.strerror}")
    except ValueError as error:
        config.die(error)
    if not golds:
        config.die(f"--gold {' '.join(cfg.gold)}: no .py file there")
    index, hits = Golds(golds, cfg.n), []
    for file, number, row in log.bar(rows, desc="comparing"):
        best: dict[str, float] = {}
        for code in snippets(row):
            for name, share in index.contained(code).items():
                best[name] = max(share, best.get(name, 0.0))
        hits += [
            {"file": file, "entry": number, "gold": name, "share": round(share, 3)}
            for name, share in best.items()
            if share >= cfg.flag
        ]
    for hit in hits:
        print(f"{hit['file']} entry {hit['entry']}: {hit['share']:.0%} of {hit['gold']}")
    print(
        f"{len({(h['file'], h['entry']) for h in hits})} of {len(rows)} entries contain a gold solution ({len(golds)} of them, {cfg.n}-grams, {cfg.flag:.0%} or more)"
    )
    if cfg.out:
        Path(cfg.out).write_text(
            json.dumps({"n": cfg.n, "flag": cfg.flag, "entries": len(rows), "hits": hits}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
