"""What a benchmark run has done so far, one line at a time, so that a run that was killed can continue.

Beside OUT.json lies OUT.journal.jsonl, and OUT.journal.<rank>.jsonl for each other rank of torchrun. Lines
are only ever appended:

    {"kind": "settings", ...}                              what may not change when the run is continued
    {"kind": "model", "id": ...}                           the model that is asked
    {"kind": "sample", "problem": ..., "sample": i, ...}   a candidate, as it came
    {"kind": "verdict", "problem": ..., "sample": i, "policy": ..., ...}

A killed process can leave half a line at the end of its file. It is cut off when the run continues. Every
rank reads all files, so the number of ranks may change. Of two lines about the same thing the first counts,
so that nothing is counted twice.
"""

import fcntl
import json
import os
from pathlib import Path

from nanotriton.config import ConfigError, reason, spelled


def path_of(out: Path, rank: int) -> Path:
    return out.with_suffix(f".journal.{rank}.jsonl" if rank else ".journal.jsonl")


def all_paths(out: Path) -> list[Path]:
    return sorted(out.parent.glob(f"{out.stem}.journal*.jsonl"))


class Journal:
    """The journal of one run. `entries` maps (kind, problem, sample, policy) to the line.

    ConfigError if the file belongs to a run with other settings, or to one that is still going.
    """

    def __init__(self, out: Path, settings: dict, rank: int = 0, size: int = 1, fresh: bool = False):
        self.out, self.settings = out, settings
        self.entries: dict[tuple, dict] = {}
        self.model = ""  # that is asked; "": none was
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
            if rank == 0:
                self._delete_others(size)
        self._cut()
        if os.fstat(self.file.fileno()).st_size == 0:
            self.append({"kind": "settings", **settings})

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *exc) -> None:
        self.file.close()

    def _delete_others(self, size: int) -> None:
        """Delete the files of ranks that this run, of `size` ranks, does not have."""
        kept = [path_of(self.out, rank) for rank in range(size)]
        for old in all_paths(self.out):
            if old not in kept:
                old.unlink()

    def _cut(self) -> None:
        """Cut off half a line at the end.

        What a run begins with is cut too if nothing else follows: nothing came of it, and it may change.
        """
        self.file.seek(0)
        data = self.file.read()
        *lines, _ = data.split(b"\n")
        came = [line for line in lines if not line.startswith((b'{"kind": "settings"', b'{"kind": "model"'))]
        self.file.truncate(data.rfind(b"\n") + 1 if came else 0)

    def append(self, line: dict) -> None:
        """Write one line. Once this returns, the line survives a kill of this process."""
        self.file.write(json.dumps(line).encode() + b"\n")
        self.file.flush()
        self._take(line)

    def read(self) -> "Journal":
        """Take in the lines that all ranks have written so far."""
        for path in all_paths(self.out):
            for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
                try:
                    line = json.loads(text)
                    if line["kind"] == "model":
                        line["id"]
                    elif line["kind"] != "settings":
                        line["problem"], line["sample"]  # KeyError where one is missing
                except (ValueError, KeyError, TypeError):
                    raise ConfigError(
                        f"{path} line {number}: not a line of a journal; repair it, or give --fresh"
                    ) from None
                self._take(line)
        return self

    def _take(self, line: dict) -> None:
        if line["kind"] == "settings":
            changed = [k for k, v in self.settings.items() if line.get(k) != v]
            if changed:
                told = (spelled(option, line.get(option), False) for option in changed)
                options = ", ".join(f"{'with' if given else 'without'} {words}" for words, given in told)
                raise ConfigError(
                    f"{self.out} holds a run that was started {options}: start it like that, or give "
                    "another --out, or --fresh"
                )
            return
        if line["kind"] == "model":
            if self.model and line["id"] != self.model:
                raise ConfigError(
                    f"{self.out} holds answers of {self.model}, and {line['id']} is asked now: "
                    "give the first again, another --out, or --fresh"
                )
            self.model = line["id"]
            return
        key = (line["kind"], line["problem"], line["sample"], line.get("policy"))
        self.entries.setdefault(key, line)

    def asks(self, model: str) -> None:
        """Note the id of the model that is asked. ConfigError if an earlier one was another."""
        if self.model != model:
            self._take({"kind": "model", "id": model})
            self.append({"kind": "model", "id": model})

    def get(self, kind: str, problem: str, sample: int, policy: str | None = None) -> dict | None:
        return self.entries.get((kind, problem, sample, policy))
