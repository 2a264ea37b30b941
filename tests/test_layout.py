"""The laws of the layout: no import circles, and no wing reaches into one that it must not know."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WINGS = [
    "plan",
    "rules",
    "tasks",
    "kernels",
    "executor.common",
    "executor.sandbox",
    "executor.ttir",
    "executor.replay",
    "executor.gpu",
]
WINGS += ["executor.child", "executor.judge", "executor", "collect", "reward"]
# The folders of the judge, and which of them each may import.
JUDGE = {
    "task": set(),
    "inputs": {"task"},
    "comparison": {"task"},
    "reference": {"task", "inputs", "comparison"},
    "trials": {"task", "inputs", "comparison", "reference"},
    "candidate": {"task", "inputs", "comparison", "reference", "trials"},
}
# wing: the wings (or files) of nanotriton that it may import; a wing may always import itself
MAY_IMPORT = {
    "plan": set(),
    "rules": {"plan", "python_text", "verdict"},
    "executor.common": {"plan"},
    "executor.sandbox": set(),
    "executor.ttir": set(),
    "executor.replay": {"plan", "verdict", "executor.common", "executor.ttir"},
    "executor.gpu": {
        "plan",
        "verdict",
        "vmm",
        "executor.common",
        "executor.sandbox",
        "executor.ttir",
        "executor.replay",
    },
    "executor.child": {"plan", "executor.common", "executor.sandbox"},
}


@functools.cache
def modules() -> dict[str, Path]:
    """Every module of the project that others import, by its dotted name."""
    files = ROOT.glob("nanotriton/**/*.py")
    return {".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f for f in files}


@functools.cache
def imports() -> dict[str, set[str]]:
    """module -> the project's modules that it imports, anywhere in the file."""
    known = modules()
    edges = {}
    for module, file in known.items():
        named = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                whole = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= whole & known.keys() or {node.module}
        edges[module] = {name for name in named if name in known and name != module}
    return edges


def wing(module: str) -> str:
    """The wing that a module belongs to; a file that lies in none is a wing of its own."""
    name = module.removeprefix("nanotriton.")
    longest = sorted(WINGS, key=len, reverse=True)
    return next((w for w in longest if name == w or name.startswith(f"{w}.")), name)


def in_circles(edges: dict[str, set[str]]) -> list[str]:
    """The nodes from which a path leads back to themselves."""
    reach = {node: set(targets) for node, targets in edges.items()}
    grew = True
    while grew:
        grew = False
        for targets in reach.values():
            further = set().union(*(reach.get(t, set()) for t in targets)) - targets
            targets |= further
            grew = grew or bool(further)
    return sorted(node for node, targets in reach.items() if node in targets)


def between_wings() -> dict[str, set[str]]:
    edges: dict[str, set[str]] = {}
    for module, targets in imports().items():
        others = {wing(t) for t in targets} - {wing(module), "nanotriton"}
        edges.setdefault(wing(module), set()).update(others)
    return edges


def test_no_files_import_each_other_in_circles():
    files = {
        m: {t for t in targets if modules()[t].name != "__init__.py"} for m, targets in imports().items()
    }
    assert in_circles(files) == []


def test_no_wings_import_each_other_in_circles():
    assert in_circles(between_wings()) == []


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_a_wing_imports_only_what_it_may(name):
    assert between_wings()[name] <= MAY_IMPORT[name]


def test_the_folders_of_the_judge_are_those_above():
    judge = ROOT / "nanotriton" / "executor" / "judge"
    assert {file.parent.name for file in judge.glob("*/*.py")} == set(JUDGE)


@pytest.mark.parametrize("folder", JUDGE)
def test_a_folder_of_the_judge_imports_only_what_it_may(folder):
    inside = f"nanotriton.executor.judge.{folder}."
    targets = set().union(*(targets for module, targets in imports().items() if module.startswith(inside)))
    used = {target.split(".")[3] for target in targets if target.startswith("nanotriton.executor.judge.")}
    assert used and used - {folder} <= JUDGE[folder]


def test_nothing_below_the_reward_imports_it():
    users = {
        wing(module)
        for module, targets in imports().items()
        if any(target.startswith("nanotriton.reward") for target in targets)
    }
    assert users <= {"trainer", "reward"}


def test_the_map_of_the_package_names_all_that_lies_in_it():
    package = ROOT / "nanotriton"
    there = {file.name for file in package.glob("*.py") if file.name != "__init__.py"}
    there |= {f"{file.parent.name}/" for file in package.glob("*/__init__.py")}
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    lines = text.partition("What lies where:")[2].partition("README.md")[0]
    assert set(re.findall(r"\w+(?:\.py|/)", lines)) == there
