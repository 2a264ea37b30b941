"""TritonBench's gold files: what each answers and prints, and the judgement of candidates by that.

What a gold file answers depends on no candidate. So it can be kept in a folder (`--golds`), from which later
runs take it. It is found again by the text of its file, the machine's card, the versions of everything that
ran it, and the limits. Failures of ours are not kept, nor a want of memory, which others may have caused.
Where the kernel has Landlock, sandboxed files cannot open the folder (nanotriton/executor/sandbox/files.py).
"""

import dataclasses
import functools
import hashlib
import json
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.channels import answers
from nanotriton.config import ConfigError, reason
from nanotriton.executor.script import ScriptExecutor, read_answer
from nanotriton.tasks import tritonbench
from nanotriton.tasks.tritonbench import Problem
from nanotriton.verdict import Fault, Verdict

PASSING = ("infra_error", "memory_limit")  # statuses of a gold file that another run may not see


@dataclass(frozen=True)
class Files:
    """An implementation with the test behind it, as our own way runs it and as the paper's harness does.

    The two are the same text unless the implementation has a `__main__` block, or nothing imports torch.
    """

    ours: str
    paper: str

    @classmethod
    def of(cls, code: str, problem: Problem, seed: int) -> "Files":
        parts = (code, problem.test, seed, problem.name)
        return cls(tritonbench.script(*parts), tritonbench.paper_script(*parts))


@dataclass
class GoldAnswer:
    """What a gold file answers and prints, whether its test is weak, and the judgement of candidates."""

    verdict: Verdict  # of running its file in our own way
    printed: str | None  # by its file in the paper's way; None: that failed
    weak: list[str]  # why its test can't tell right from wrong
    file: str  # where its answer lies, if it has one

    @classmethod
    def found(cls, executor: ScriptExecutor, files: Files, ran: tuple[Verdict, Verdict]) -> "GoldAnswer":
        """Of files that have run. ran: the verdicts of running them, ours and the paper's."""
        verdict, in_paper = ran
        if in_paper.status == "infra_error":  # then nothing is known of what it prints
            verdict = in_paper
        printed = executor.printed(files.paper) if in_paper.correct else None
        gold = cls(verdict, printed, [], executor.answer_file(files.ours))
        if verdict.correct:
            gold.weak = answers.weakness(gold.tree)
        return gold

    @functools.cached_property
    def tree(self) -> Any:
        """The answer. The file must have run to its end."""
        return read_answer(self.file).tree

    def judge(self, executor: ScriptExecutor, source: str, ran: Verdict) -> Verdict:
        """The verdict by tensors. ran: the verdict of running the candidate's file."""
        if not ran.correct:
            return ran
        if self.verdict.status == "infra_error":  # our failure: judged when the run is continued
            return self.verdict
        if not self.verdict.correct:
            message = f"the gold file itself fails here: {self.verdict.status}: {self.verdict.message}"
            return dataclasses.replace(ran, status="unsupported", stage="gold", message=message)
        try:
            answers.check_answer(executor.answer(source).tree, self.tree)
        except Fault as fault:
            return dataclasses.replace(ran, status=fault.status, stage="judge", message=fault.message)
        return ran

    def paper(self, executor: ScriptExecutor, source: str, ran: Verdict) -> tuple[bool | None, bool | None]:
        """(call, stdout) as the paper has them; None for what can't be told here.

        It can't where the candidate's file or the gold file is unsupported. ran: as for `judge`.
        """
        if not ran.correct:
            unknown = None if ran.status in ("unsupported", "infra_error") else False
            return unknown, unknown
        if self.printed is None:
            return True, None
        return True, executor.printed(source) == self.printed


def make_folder(path: str) -> None:
    """Make the folder of --golds if it is not there. Raises ConfigError if it can't be written in."""
    try:
        Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(f"--golds {path}: cannot write there: {reason(error)}") from None


class KeptGolds:
    """Gold answers in a folder (see `make_folder`). Without one nothing is kept, and nothing found.

    about: what an answer depends on beside the text of its file.
    """

    def __init__(self, folder: str, about: dict):
        self.folder = Path(folder) if folder else None
        self.about = json.dumps(about, sort_keys=True)

    def _entry(self, files: Files) -> Path:
        text = json.dumps([self.about, files.ours, files.paper])
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"

    def find(self, files: Files) -> GoldAnswer | None:
        """What an earlier run has kept of these files. Half an entry counts as none."""
        if self.folder is None:
            return None
        entry = self._entry(files)
        try:
            kept = json.loads(entry.read_text(encoding="utf-8"))
            verdict, answer = Verdict(**kept["verdict"]), entry.with_suffix(".answer")
            if verdict.correct and answer.stat().st_size != kept["bytes"]:
                return None
            return GoldAnswer(verdict, kept["printed"], kept["weak"], str(answer))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, files: Files, gold: GoldAnswer, ran: tuple[Verdict, Verdict]) -> None:
        """Keep an answer, whole or not at all, even if several runs do so at a time. ran: as for `found`."""
        if self.folder is None or any(verdict.status in PASSING for verdict in ran):
            return
        entry = self._entry(files)
        part = entry.with_suffix(f".{secrets.token_hex(4)}")
        about = {"verdict": dataclasses.asdict(gold.verdict), "printed": gold.printed, "weak": gold.weak}
        if gold.verdict.correct:
            shutil.copyfile(gold.file, part)
            about["bytes"] = part.stat().st_size
            part.replace(entry.with_suffix(".answer"))
        part.write_text(json.dumps(about), encoding="utf-8")
        part.replace(entry)
