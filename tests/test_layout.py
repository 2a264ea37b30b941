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
WINGS += ["transformer", "sampler", "parallel", "runs", "search", "endpoint", "browse"]
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
    "kernels": set(),
    "transformer": {"kernels", "config"},
    "sampler": {"kernels", "transformer", "config", "vmm"},
    "parallel": {"kernels", "transformer", "config", "executor"},
    "runs": {
        "transformer",
        "sampler",
        "parallel",
        "executor",
        "tasks",
        "grpo",
        "rollout",
        "config",
        "options",
        "log",
        "trackers",
        "verdict",
    },
    "search": {
        "transformer",
        "sampler",
        "endpoint",
        "executor",
        "rules",
        "tasks",
        "config",
        "log",
        "schedule",
        "verdict",
    },
    "tasks": {"transformer", "rules", "config", "python_text", "rows", "schedule"},
    "endpoint": {"rules", "tasks", "config"},
    "reward": {"executor", "library", "rules", "tasks", "config", "log", "options", "rows", "verdict"},
    "collect": {
        "transformer",
        "endpoint",
        "executor",
        "executor.sandbox",
        "rules",
        "tasks",
        "config",
        "log",
        "python_text",
        "rows",
    },
    "browse": {"rules", "config", "verdict"},
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
    "executor.judge": {
        "plan",
        "rules",
        "tasks",
        "verdict",
        "executor.common",
        "executor.sandbox",
        "executor.replay",
        "executor.gpu",
        "executor.child",
    },
    "executor": {
        "plan",
        "rules",
        "tasks",
        "config",
        "log",
        "python_text",
        "rows",
        "verdict",
        "executor.common",
        "executor.sandbox",
        "executor.judge",
    },
}
# wing: all that may import it; the scripts beside the package may, too
IMPORTED_BY = {
    "kernels": {"transformer", "sampler", "parallel", "data"},
    "sampler": {"complete", "heldout", "rollout", "trainer", "runs", "search"},
    "parallel": {"heldout", "microbatch", "trainer", "runs"},
    "runs": {"heldout", "trainer"},
    "search": set(),
    "reward": {"trainer"},
}
# The folders of the package whose page lists their files.
LISTED = ["transformer", "sampler", "kernels", "parallel", "runs", "search", "tasks", "collect", "reward"]
LISTED += ["endpoint", "browse", "collect/compile", "collect/compose", "collect/compose/emit"]
LISTED += ["collect/grammar"]


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


def test_every_wing_has_a_rule():
    folders = {file.parent.name for file in (ROOT / "nanotriton").glob("*/__init__.py")}
    assert MAY_IMPORT.keys() == set(WINGS) and folders <= MAY_IMPORT.keys()


def test_the_folders_of_the_judge_are_those_above():
    judge = ROOT / "nanotriton" / "executor" / "judge"
    assert {file.parent.name for file in judge.glob("*/*.py")} == set(JUDGE)


@pytest.mark.parametrize("folder", JUDGE)
def test_a_folder_of_the_judge_imports_only_what_it_may(folder):
    inside = f"nanotriton.executor.judge.{folder}."
    targets = set().union(*(targets for module, targets in imports().items() if module.startswith(inside)))
    used = {target.split(".")[3] for target in targets if target.startswith("nanotriton.executor.judge.")}
    assert used and used - {folder} <= JUDGE[folder]


@pytest.mark.parametrize("name", IMPORTED_BY)
def test_a_wing_is_imported_only_by_those_that_may(name):
    users = {user for user, wings in between_wings().items() if name in wings}
    assert users <= IMPORTED_BY[name]


@pytest.mark.parametrize("folder", LISTED)
def test_a_folder_opens_with_a_list_of_its_files(folder):
    there = ROOT / "nanotriton" / folder
    page = ast.get_docstring(ast.parse((there / "__init__.py").read_text(encoding="utf-8")))
    names = {file.name for file in there.glob("*.py")} - {"__init__.py", "__main__.py"}
    listed = set(re.findall(r"^ {4}(\w+\.py)", page, re.MULTILINE))
    assert names <= set(re.findall(r"(?<![\w/])\w+\.py", page))
    assert {name for name in listed if not (there / name).exists()} == set()


def test_the_map_of_the_package_names_all_that_lies_in_it():
    package = ROOT / "nanotriton"
    there = {file.name for file in package.glob("*.py") if file.name != "__init__.py"}
    there |= {f"{file.parent.name}/" for file in package.glob("*/__init__.py")}
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    lines = text.partition("What lies where:")[2].partition("README.md")[0]
    assert set(re.findall(r"\w+(?:\.py|/)", lines)) == there
