"""Every command that names a benchmark starts one; one that was moved names its successor."""

import ast
import json
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


BENCHMARKS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "bench").rglob("*.py"))
    if runs(path)
]
PAGES = """
import json, sys
from pathlib import Path
from bench.help import page

pages = {name: page(name, Path(*name.split(".")).with_suffix(".py")) for name in sys.argv[1:]}
assert "torch" not in sys.modules, "torch was imported"
print(json.dumps(pages))
"""


def test_every_benchmark_has_a_page_of_help_without_torch():
    argv = [sys.executable, "-c", PAGES, *BENCHMARKS]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = json.loads(done.stdout)
    assert len(pages) > 20
    for name, page in pages.items():
        source = file_of(name).read_text(encoding="utf-8")
        assert page.startswith(ast.get_docstring(ast.parse(source)))
        assert ("options:" in page) == ("\nclass Config" in source)


def test_the_page_of_a_benchmark_is_that_of_its_class():
    """What is made of a part of the file is what the whole file makes."""
    from bench.channels import kernelbench
    from nanotriton import config

    words = [sys.executable, "-m", "bench.channels.kernelbench", "--data", "x", "--help"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    assert (
        done.stdout == f"{kernelbench.__doc__.strip()}\n\noptions:\n{config.help_text(kernelbench.Config)}\n"
    )


def test_where_a_benchmark_runs_is_decided_when_it_runs(monkeypatch):
    from bench.channels import kernelbench

    for there, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        assert kernelbench.Config().device == device and kernelbench.Config(device="cpu").device == "cpu"
