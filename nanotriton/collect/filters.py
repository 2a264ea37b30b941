"""What keeps the data clean: nothing twice, and nothing of a benchmark that models will be measured on.

Decontamination has two levels. A copy of a benchmark's problem always goes: the same operators in the same
order on inputs of the same shapes (renamed, reformatted, with other constants, split over two modules, it
is still that), or a text that contains most of the problem's own or of its solution's. The same operators
with other shapes are another task about the same thing: it stays, is marked, and goes under `strict`.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from nanotriton.collect.fingerprint import Fingerprint, exact, fingerprint, ngrams, share
from nanotriton.python_text import read_anyhow

COPIED = 0.6  # share of a problem's n-grams in a text that makes it a copy
COPIED_ALONE = 0.9  # of a problem that is a single operator: much of its text is how such a layer is made
BOILERPLATE = 3  # problems that share an n-gram for it to say nothing
NEAR = 0.9  # two texts whose n-grams overlap so much (Jaccard) are near-duplicates


@dataclass
class Decontaminator:
    """Knows the problems of the benchmark folders that were named."""

    problems: dict[str, Fingerprint] = field(default_factory=dict)  # by file
    # n-grams of each file that few others have
    telling: dict[str, frozenset[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, folders: list[str]) -> "Decontaminator":
        """Reads every .py file under the folders.

        Raises ValueError (one line) for a folder that holds none.
        """
        texts: dict[str, str] = {}
        for folder in folders:
            files = sorted(Path(folder).rglob("*.py")) if Path(folder).is_dir() else []
            if not files:
                raise ValueError(
                    f"--exclude {folder}: no .py file there; a folder of benchmark problems is expected"
                )
            texts |= {str(f): read_anyhow(f) for f in files}
        problems = {name: fingerprint(text) for name, text in texts.items()}
        count = Counter(g for p in problems.values() for g in p.ngrams)
        telling = {}
        for name, problem in problems.items():
            telling[name] = frozenset(g for g in problem.ngrams if count[g] <= BOILERPLATE)
        return cls(problems, telling)

    def check(self, source: str, solution: str = "", found: Fingerprint | None = None) -> tuple[str, str]:
        """("", ""), ("copy", which file) or ("same operator", which file). found: the source's fingerprint,
        where it is known already.
        """
        if not self.problems:
            return "", ""
        found = found or fingerprint(source)
        texts = found.ngrams | (ngrams(solution) if solution else frozenset())
        for name, problem in self.problems.items():
            if found.operators and found.operators == problem.operators and found.shapes == problem.shapes:
                return "copy", name
        same = next(
            (name for name, p in self.problems.items() if found.operators and found.operators == p.operators),
            "",
        )
        # Where shapes are known, other ones make it another task, whose text may well be the problem's own.
        if same and found.shapes:
            return "same operator", same
        for name, telling in self.telling.items():
            single = len(self.problems[name].operators) == 1
            if len(telling) >= 8 and share(telling, texts) >= (COPIED_ALONE if single else COPIED):
                return "copy", name
        return ("same operator", same) if same else ("", "")


class Duplicates:
    """Remembers what has been kept, and says what a new text is a duplicate of."""

    def __init__(self):
        self.exact: dict[str, str] = {}
        self.near: list[tuple[str, frozenset[int]]] = []
        self.index: dict[int, list[int]] = {}  # n-gram -> the texts that have it

    def check(self, name: str, source: str) -> str:
        """The name of what it repeats; "" if it is new, and then it is remembered."""
        key = exact(source)
        if key in self.exact:
            return self.exact[key]
        grams = ngrams_with_constants(source)
        seen = Counter(i for g in grams for i in self.index.get(g, ()))
        for i, common in seen.most_common(3):
            other, theirs = self.near[i]
            if common / (len(grams) + len(theirs) - common) >= NEAR:
                return other
        self.exact[key] = name
        for g in grams:
            self.index.setdefault(g, []).append(len(self.near))
        self.near.append((name, grams))
        return ""


def ngrams_with_constants(source: str) -> frozenset[int]:
    """N-grams of eight words of the text as it stands: near-duplicates share their constants too."""
    words = source.split()
    return frozenset(hash(tuple(words[i : i + 8])) for i in range(max(len(words) - 7, 1)))
