"""What a benchmark run has done so far, one line at a time: how a run that was killed continues, and never counts anything twice.

Beside OUT.json lies OUT.journal.jsonl (OUT.journal.<rank>.jsonl for the other ranks of torchrun). Its lines are only ever appended:

    {"kind": "settings", ...}                              what may not change when the run is continued
    {"kind": "sample", "problem": ..., "sample": i, ...}   a candidate, as it came
    {"kind": "verdict", "problem": ..., "sample": i, "policy": ..., ...}

Half a line at the end, all that a killed process can leave, is cut off when the run continues. Every rank reads all files, so the
number of ranks may change. Of two lines about the same thing the first counts.
"""

import fcntl
import json
import os
from pathlib import Path

from nanotriton.config import ConfigError, reason


def path_of(out: Path, rank: int) -> Path:
    return out.with_suffix(f".journal.{rank}.jsonl" if rank else ".journal.jsonl")


def all_paths(out: Path) -> list[Path]:
    return sorted(out.parent.glob(f"{out.stem}.journal*.jsonl"))


class Journal:
    """Append-only; `entries` maps (kind, problem, sample, policy) to its line. ConfigError for another run's or a locked journal."""

    def __init__(self, out: Path, settings: dict, rank: int = 0, size: int = 1, fresh: bool = False):
        self.out, self.settings = out, settings
        self.entries: dict[tuple, dict] = {}
        path = path_of(out, rank)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            self.file = open(path, "a+b")  # noqa: SIM115 (open, and locked, as long as the run lives)
        except OSError as error:
            raise ConfigError(f"--out {out}: cannot write in {out.parent}: {reason(error)}") from None
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"{path} belongs to a run that is still going; wait for it, or give another --out"
            ) from None
        if fresh:
            self.file.truncate(0)
            for old in all_paths(out) if rank == 0 else ():  # of a run with more ranks
                if old not in [path_of(out, r) for r in range(size)]:
                    old.unlink()
        self._cut()
        if os.fstat(self.file.fileno()).st_size == 0:
            self.append({"kind": "settings", **settings})

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *exc) -> None:
        self.file.close()

    def _cut(self) -> None:
        """Half a line at the end; and settings alone, of which nothing came: a mistake mended, perhaps."""
        self.file.seek(0)
        data = self.file.read()
        whole = data.rfind(b"\n") + 1
        self.file.truncate(whole if data.count(b"\n") > 1 else 0)

    def append(self, line: dict) -> None:
        """Write one line; it survives a kill of this process from here on."""
        self.file.write(json.dumps(line).encode() + b"\n")
        self.file.flush()
        self._take(line)

    def read(self) -> "Journal":
        """Take in the lines of all ranks, once they are there."""
        for path in all_paths(self.out):
            for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
                try:
                    line = json.loads(text)
                    if line["kind"] != "settings":
                        line["problem"], line["sample"]
                except (ValueError, KeyError, TypeError):
                    raise ConfigError(
                        f"{path} line {number}: not a line of a journal; repair it, or start over with --fresh"
                    ) from None
                self._take(line)
        return self

    def _take(self, line: dict) -> None:
        if line["kind"] == "settings":
            changed = [
                f"--{k.replace('_', '-')} {line.get(k)}" for k, v in self.settings.items() if line.get(k) != v
            ]
            if changed:
                raise ConfigError(
                    f"{self.out} holds a run with {', '.join(changed)}: give those, another --out, or --fresh"
                )
            return
        key = (line["kind"], line["problem"], line["sample"], line.get("policy"))
        self.entries.setdefault(key, line)

    def get(self, kind: str, problem: str, sample: int, policy: str | None = None) -> dict | None:
        return self.entries.get((kind, problem, sample, policy))


def write_json(path: Path, data: dict) -> None:
    """Write whole, then rename: whoever reads sees the old file or the new one."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(path)
