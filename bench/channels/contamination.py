"""Does a text contain a gold solution? By n-grams of normalised Python tokens.

    python -m bench.channels.contamination --gold FOLDER_OR_FILE.py --data FILE.jsonl [--out hits.json]

Comments, docstrings and layout are dropped. Every name that the code itself binds becomes one symbol, so that
renaming hides nothing. A gold solution is contained to the share of its n-grams that the text has too.
N-grams that several gold solutions share are boilerplate and do not count. Every JSON string in --data that
holds a fenced Python block, or has several lines, is looked at.
"""

import ast
import io
import keyword
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from bench.channels.sources import read_jsonl
from bench.results import write_json
from nanotriton import config, log
from nanotriton.rules.extract import parse, python_blocks
from nanotriton.tasks.tritonbench import SEPARATOR

N = 16  # tokens of an n-gram
FLAG = 0.5  # a text is flagged from this share of a gold solution on
COMMON = 3  # an n-gram that so many gold solutions share is boilerplate
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


@dataclass
class Config:
    gold: list[str] = field(default_factory=list)  # gold solutions: Python files, or folders of them
    data: list[str] = field(default_factory=list)  # JSONL files: training data or candidates
    n: Annotated[int, ">= 1"] = N  # tokens of an n-gram
    # an entry is flagged from this share of a gold solution on
    flag: Annotated[float, "> 0", "<= 1"] = FLAG
    out: str = ""  # JSON file for the hits; empty: print only


def tokens(code: str) -> list[str]:
    """Normalised tokens: names that the code binds are "v", strings are "s", layout is gone.

    Code that is no Python is split into words, as they are.
    """
    try:
        tree = parse(code)
        found = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (SyntaxError, tokenize.TokenError):
        return code.split()
    bound, documentation = bound_names(tree), docstring_places(tree)
    result = []
    previous = ""
    for token in found:
        if token.type in LAYOUT or token.start in documentation:
            continue
        if token.type == tokenize.STRING:
            result.append("s")
        elif token.string in bound and not keyword.iskeyword(token.string) and previous != ".":
            result.append("v")
        else:
            result.append(token.string)
        previous = token.string
    return result


def bound_names(tree: ast.AST) -> set[str]:
    """The names that the code assigns, defines or takes as arguments."""
    bound = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
    return bound


def docstring_places(tree: ast.AST) -> set[tuple[int, int]]:
    """(line, column) of every string that is a statement of its own."""
    places = set()
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            places.add((node.lineno, node.col_offset))
    return places


def ngrams(code: str, n: int = N) -> set[int]:
    """Hashes of the code's n-grams; of code shorter than n tokens, the hash of all of it.

    They can be compared within one process only, as Python salts them.
    """
    words = tokens(code)
    if not words:
        return set()
    return {hash(tuple(words[i : i + n])) for i in range(max(1, len(words) - n + 1))}


class Golds:
    """Gold solutions by name, indexed."""

    def __init__(self, golds: dict[str, str], n: int = N):
        self.n = n
        grams = {name: ngrams(code, n) for name, code in golds.items()}
        count: Counter[int] = Counter()
        for found in grams.values():
            count.update(found)
        common = {gram for gram, number in count.items() if number >= COMMON}
        # A solution that is nothing but boilerplate keeps it: it has no other n-grams to be known by.
        self.own = {name: found - common or found for name, found in grams.items()}

    def contained(self, code: str) -> dict[str, float]:
        """{name of a gold solution: the share of it that is in `code`}, largest first, without those at 0."""
        grams = ngrams(code, self.n)
        shares = {name: len(own & grams) / len(own) for name, own in self.own.items() if own & grams}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))


def snippets(value) -> Iterator[str]:
    """The pieces of Python in a JSON value."""
    if isinstance(value, str):
        if blocks := python_blocks(value):
            yield from blocks
        elif "\n" in value:
            yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from snippets(inner)


def read_golds(paths: list[str]) -> dict[str, str]:
    """{file: its code, without TritonBench's tests}. Ends in one line for a path that can't be read."""
    golds: dict[str, str] = {}
    for path in map(Path, paths):
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            try:
                text = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                config.die(f"--gold {file}: cannot read: {config.reason(error)}")
            golds[str(file)] = SEPARATOR.split(text)[0]
    if not golds:
        config.die(f"--gold {' '.join(paths)}: no .py file there")
    return golds


def shares_of(row: dict, golds: Golds) -> dict[str, float]:
    """{name of a gold solution: the largest share of it in one snippet of this entry}."""
    best: dict[str, float] = {}
    for code in snippets(row):
        for name, share in golds.contained(code).items():
            best[name] = max(share, best.get(name, 0.0))
    return best


def main() -> None:
    cfg = config.parse(Config)
    if not cfg.gold or not cfg.data:
        config.die("give --gold FOLDER and --data FILE.jsonl")
    golds = read_golds(cfg.gold)
    try:
        rows = [(file, i, row) for file in cfg.data for i, row in enumerate(read_jsonl(file), 1)]
    except ValueError as error:
        config.die(error)
    index, hits = Golds(golds, cfg.n), []
    for file, number, row in log.bar(rows, desc="comparing"):
        for name, share in shares_of(row, index).items():
            if share >= cfg.flag:
                hits.append({"file": file, "entry": number, "gold": name, "share": round(share, 3)})
    for hit in hits:
        print(f"{hit['file']} entry {hit['entry']}: {hit['share']:.0%} of {hit['gold']}")
    entries = len({(hit["file"], hit["entry"]) for hit in hits})
    how = f"{len(golds)} of them, {cfg.n}-grams, {cfg.flag:.0%} or more"
    print(f"{entries} of {len(rows)} entries contain a gold solution ({how})")
    if cfg.out:
        write_json(cfg.out, {"n": cfg.n, "flag": cfg.flag, "entries": len(rows), "hits": hits})


if __name__ == "__main__":
    main()
