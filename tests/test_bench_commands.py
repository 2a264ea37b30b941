"""Every command that names a benchmark starts one; one that was moved names its successor."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bench

ROOT = Path(__file__).resolve().parents[1]
COMMAND = re.compile(r"(?:-m |-m -- |`)(bench(?:\.\w+)+)")
FOLDERS = sorted(path.name for path in (ROOT / "bench").iterdir() if (path / "__init__.py").exists())


def texts() -> list[Path]:
    found = [*ROOT.glob("*.md"), *ROOT.glob("*.py"), ROOT / "pyproject.toml"]
    for folder in ("bench", "docs", "nanotriton", "results", "tests"):
        found += [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md")]
    return [path for path in found if path != Path(__file__)]  # it names an old command


def file_of(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def runs(path: Path) -> bool:
    """Whether the file does something when it is run as a module."""
    return path.is_file() and 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")


def test_every_command_in_the_texts_is_a_benchmark():
    named = {module: path for path in texts() for module in COMMAND.findall(path.read_text(encoding="utf-8"))}
    assert len(named) > 20
    assert {module: str(path) for module, path in named.items() if not runs(file_of(module))} == {}


@pytest.mark.parametrize("old", bench.SUCCESSORS)
def test_a_benchmark_that_was_moved_has_a_successor(old):
    assert runs(file_of(bench.SUCCESSORS[old])) and not file_of(old).exists()


def test_an_old_command_names_its_successor_and_exits_2():
    words = [sys.executable, "-m", "bench.kernelbench", "--data", "x"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "error: python -m bench.kernelbench is python -m bench.channels.kernelbench now\n"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_of_benchmarks_imports_no_other(folder):
    others = tuple(f"bench.{name}" for name in FOLDERS if name != folder)
    for path in (ROOT / "bench" / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            assert not (module or "").startswith(others), f"{path.name} imports {module}"
