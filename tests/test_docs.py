"""README and docs/ say what is there: paths, modules, options, steps and snippets are checked against the project."""

import ast
import re
import sys
import tokenize
from functools import cache
from pathlib import Path

import pytest

import sample
import train_grpo
import train_sft
from nanotriton import config
from nanotriton.reward.reward import load_reward
from nanotriton.verdict import STATUSES, Verdict

ROOT = Path(__file__).resolve().parents[1]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SCRIPTS = {"train_grpo.py": train_grpo.Config, "train_sft.py": train_sft.Config, "sample.py": sample.Config}
SOURCES = sorted(file for name in ("nanotriton", "bench", "tests") for file in (ROOT / name).rglob("*.py"))
# Where a relative path in the text may begin.
STARTS = (ROOT, ROOT / "docs", ROOT / "nanotriton", ROOT / "nanotriton" / "executor")
WINGS = ["plan", "rules", "executor"]
WINGS += [f"executor/{name}" for name in ("child", "judge", "replay", "sandbox", "gpu", "common", "ttir")]
JUDGE = ["task", "inputs", "comparison", "reference", "trials", "candidate"]
SNIPPET = re.compile(r"^```python runnable\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def each_doc(function):
    return pytest.mark.parametrize("doc", DOCS, ids=lambda doc: doc.name)(function)


def code(text: str) -> list[str]:
    """What a page sets as code: lines of fenced and indented blocks, and spans in backticks."""
    fenced = re.findall(r"^```[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in fenced for line in block.splitlines()]
    lines += re.findall(r"^ {4}(.*)$", rest, re.MULTILINE)
    return lines + re.findall(r"`([^`\n]+)`", rest)


# ---- length


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) < 1300


# ---- paths


@cache
def folders() -> set[str]:
    """Names with which a path of the project may begin. `out` holds runs, which are not part of it."""
    return {path.name for start in STARTS for path in start.iterdir()} - {"out"}


@cache
def all_source() -> str:
    scripts = [ROOT / name for name in SCRIPTS]
    return "\n".join(file.read_text() for file in SOURCES + scripts if file != Path(__file__))


def is_there(path: str) -> bool:
    return any((start / path).exists() for start in STARTS)


def is_a_file_of_ours(name: str) -> bool:
    """A file without its folder is ours if one has its name, or if a script writes or reads one of that name."""
    return any(file.name == name for file in [*SOURCES, *DOCS]) or is_there(name) or name in all_source()


@each_doc
def test_paths_that_are_named_exist(doc):
    text = re.sub(r"https?://[^\s)]+", "", doc.read_text())
    text = re.sub(r"--[\w-]+ \S+", "", text)  # the value of an option is the user's own
    paths = re.findall(r"(?<![\w/.-])([\w.-]+(?:/[\w.-]+)+/?|[\w-]+/)(?![\w/])", text)
    ours = [path for path in paths if path.split("/")[0] in folders()]
    names = re.findall(r"(?<![\w/.-])([\w-]+\.(?:py|md|json|jsonl|txt|png))\b(?!/)", text)
    names = [name for name in names if not name.split(".")[0].isupper()]  # TASK.py stands for yours
    missing = [path for path in ours if not is_there(path)]
    missing += [name for name in names if not is_a_file_of_ours(name)]
    assert missing == []


@each_doc
def test_links_lead_somewhere(doc):
    links = re.findall(r"\]\(([^)\s]+)\)", doc.read_text())
    assert [link for link in links if ":" not in link and not (doc.parent / link).exists()] == []


def test_every_result_is_told():
    told = "\n".join(doc.read_text() for doc in DOCS)
    twins = {file.stem for file in (ROOT / "results").glob("*.md")}  # a JSON may have a page beside it
    files = [file for file in (ROOT / "results").glob("*.json") if file.stem not in twins]
    assert [file.name for file in files if f"results/{file.name}" not in told] == []


def test_files_named_in_docstrings_and_comments_exist():
    known = {file.name for file in SOURCES} | {*SCRIPTS, "collect_data.py"}
    known |= {"train.py", "file.py", "_kernel.py", "my_reward.py"}  # examples, and the end of a name
    missing = set()
    for file in (ROOT / "nanotriton").rglob("*.py"):
        named = re.findall(r"(?<![\w*])(\w+\.py)\b", file.read_text())
        missing |= {f"{file.name}: {name}" for name in named if name not in known and not name[:-3].isupper()}
    assert missing == set()


def words(file: Path) -> list[str]:
    """A file's docstrings and comments."""
    found = []
    with tokenize.open(file) as lines:
        for token in tokenize.generate_tokens(lines.readline):
            is_text = token.type == tokenize.STRING and token.string.startswith('"""')
            if is_text or token.type == tokenize.COMMENT:
                found.append(token.string)
    return found


def test_a_file_in_another_folder_is_named_with_its_folder():
    """A name leads from the file that says it, or from a folder around that. So it is found, and is the right
    one where two files share a name."""
    examples = {"train.py", "file.py", "_kernel.py", "my_reward.py", "kernel.py", "task.py"}
    examples |= {"candidate.py", "numbers.py"}
    lost = set()
    for file in (ROOT / "nanotriton").rglob("*.py"):
        around = [folder for folder in file.parents if folder.is_relative_to(ROOT)]
        for name in re.findall(r"(?<![\w*/.-])((?:\w+/)*\w+\.py)\b", "\n".join(words(file))):
            known = name in examples or name[:-3].isupper()
            if not known and not any((folder / name).is_file() for folder in around):
                lost.add(f"{file.relative_to(ROOT)}: {name}")
    assert lost == set()


# ---- commands


def module_file(module: str) -> Path | None:
    """The file that `python -m module` runs, or None."""
    path = ROOT.joinpath(*module.split("."))
    return next((f for f in (path / "__main__.py", path.with_suffix(".py")) if f.is_file()), None)


@each_doc
def test_modules_that_are_named_exist(doc):
    text = doc.read_text()
    named = re.findall(r"-m (?:-- )?([\w.]+\w)", text) + re.findall(r"`(bench\.[\w.]+\w)", text)
    ours = [name for name in named if name.split(".")[0] in ("nanotriton", "bench", "tests")]
    assert [name for name in ours if module_file(name) is None] == []


def accepted(program: str) -> str:
    """A text in which each option of a program stands: of a script its help, of a module its source."""
    if program in SCRIPTS:
        return config.help_text(SCRIPTS[program]) + " --help"
    file = module_file(program)
    return file.read_text() if file else ""


@each_doc
def test_options_in_commands_exist(doc):
    unknown = []
    for line in code(doc.read_text()):
        for command in re.split(r"&&|  #", line):
            match = re.search(
                r"(train_\w+\.py|sample\.py|(?:-m (?:-- )?|^)((?:nanotriton|bench|reward)\.[\w.]+)) (.*)",
                command,
            )
            if match is None:
                continue
            text = accepted(match[2] or match[1])
            for option in re.findall(r"--([a-z][\w-]*)", match[3]):
                field = rf"^    {option.replace('-', '_')}: "
                if f"--{option}" not in text and not re.search(field, text, re.MULTILINE):
                    unknown.append(f"{match[2] or match[1]} --{option}")
    assert unknown == []


# ---- journeys


@cache
def definitions(file: Path) -> set[str]:
    """Functions, classes and methods of a file: "rollout", "Executor", "Executor.submit"."""
    found = set()
    kinds = ast.FunctionDef | ast.ClassDef
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, kinds):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, kinds)}
    return found


@each_doc
def test_steps_that_are_named_exist(doc):
    steps = re.findall(r"([\w/]+\.py):([A-Za-z_][\w.]*)", doc.read_text())
    if doc.name == "journeys.md":
        assert len(steps) > 50
    gone = [f"{file}:{name}" for file, name in steps if name not in definitions(ROOT / file)]
    assert gone == []


# ---- words


def test_the_glossary_defines_each_term_once():
    terms = re.findall(r"^\*\*(.+?)\*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    needed = (
        "candidate plan launch trial draw arena verdict replay worker zygote child group episode microbatch"
    )
    assert len(terms) == len(set(terms))
    assert set(needed.split()) | {"stress kind", "process mode", "spread", "mismatch"} <= set(terms)


def test_every_status_is_explained():
    table = (ROOT / "docs" / "executor.md").read_text()
    explained = re.findall(r"^\| `(\w+)` \| .+ \| (0|1|unscored) \|$", table, re.MULTILINE)
    assert {status for status, _ in explained} == STATUSES
    for status, worth in explained:
        assert Verdict(status).scored == (worth != "unscored")
        assert Verdict(status).correct == (worth == "1")


@pytest.mark.parametrize("wing", WINGS)
def test_a_wing_opens_with_a_page(wing):
    page = ast.get_docstring(ast.parse((ROOT / "nanotriton" / wing / "__init__.py").read_text()))
    for heading in ("Who runs here.", "What it trusts.", "Who may import it."):
        assert heading in page


@pytest.mark.parametrize("folder", [*WINGS, *(f"executor/judge/{name}" for name in JUDGE)])
def test_a_folder_opens_with_a_list_of_what_lies_in_it(folder):
    there = ROOT / "nanotriton" / folder
    page = ast.get_docstring(ast.parse((there / "__init__.py").read_text()))
    names = [file.name for file in there.glob("*.py") if file.name != "__init__.py"]
    names += [f"{file.parent.name}/" for file in there.glob("*/__init__.py")]
    assert [name for name in names if not re.search(rf"(?<![\w/]){re.escape(name)}", page)] == []


# ---- snippets


def snippets() -> list:
    found = [(doc, source) for doc in DOCS for source in SNIPPET.findall(doc.read_text())]
    return [pytest.param(source, id=f"{doc.name}-{number}") for number, (doc, source) in enumerate(found)]


@pytest.mark.parametrize("source", snippets())
def test_runnable_snippets_run(source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    if "def reward(" in source:  # a file for --reward
        file = tmp_path / "my_reward.py"
        file.write_text(source)
        function = load_reward(file)
        values = [
            function(Verdict(s), "", None) for s in ("correct", "wrong_value", "timeout", "infra_error")
        ]
        assert values == [1.0, 0.1, 0.0, None]
        return
    exec(compile(source, "snippet", "exec"), {"__name__": "snippet"})
    if "print(" in source:
        assert "correct (" in capsys.readouterr().out
