"""A documented dataclass is the command line: every field is a flag, its comment is its help.

    @dataclass
    class Config:
        lr: Annotated[float, "> 0"] = 3e-3  # peak learning rate
        loss: Literal["dapo", "grpo"] = "dapo"  # how token losses are averaged
        ks: list[int] = field(default_factory=lambda: [1, 8])  # k of pass@k

    config = parse(Config)        # --lr 1e-3 --loss=grpo --ks 1 8 16 --flag / --no-flag

A user's mistake ends in one line that names what is accepted, and exit code 2.
"""

import ast
import dataclasses
import difflib
import math
import operator
import os
import sys
import textwrap
import types
import typing
from inspect import getsource
from pathlib import Path
from typing import Any, Literal, NoReturn

TRUE, FALSE = {"true", "yes", "1", "on"}, {"false", "no", "0", "off"}
COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


class ConfigError(ValueError):
    """One line that says what was wrong on the command line and what is accepted."""


def die(message: object) -> NoReturn:
    """Print one line to stderr and exit with 2: the way every entry script answers a user's mistake."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


def reason(error: Exception) -> str:
    """Why a file couldn't be read or written, without the path that the caller names already."""
    if isinstance(error, UnicodeDecodeError):
        return f"no UTF-8 text (byte {error.start})"
    if isinstance(error, FileExistsError):  # where a folder was to be made
        return "a file is there"
    return getattr(error, "strerror", None) or str(error)


def writable(path: str) -> None:
    """Make the folder of a file of results, or ConfigError: before minutes are spent on what couldn't be kept."""
    file = Path(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {path}: cannot write in {file.parent}: {reason(error)}") from None
    if file.is_dir():
        raise ConfigError(f"--out {path}: a file is expected, this is a folder")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"--out {path}: cannot write there: Permission denied")


def comments(cls: type) -> dict[str, str]:
    """Field name -> its help, read from the class's own source: the comment lines above the field, then its trailing comment."""
    lines = textwrap.dedent(getsource(cls)).splitlines()
    found = {}
    for node in ast.parse("\n".join(lines)).body[0].body:
        if not isinstance(node, ast.AnnAssign):
            continue
        first = node.lineno - 1
        while lines[first - 1].strip().startswith("#"):
            first -= 1
        above = lines[first : node.lineno - 1]
        trailing = [line.partition("  #")[2] for line in lines[node.lineno - 1 : node.end_lineno]]
        found[node.target.id] = " ".join(filter(None, (text.strip(" #") for text in above + trailing)))
    return found


def unwrap(kind: Any) -> tuple[Any, list[str], bool]:
    """A field's annotation -> (bare type, constraints such as "> 0", whether None is allowed)."""
    limits: list[str] = []
    optional = False
    while True:
        if typing.get_origin(kind) is typing.Annotated:
            kind, *more = typing.get_args(kind)
            limits += more
        elif typing.get_origin(kind) in (types.UnionType, typing.Union) and type(None) in typing.get_args(
            kind
        ):
            kind = next(a for a in typing.get_args(kind) if a is not type(None))
            optional = True
        else:
            return kind, limits, optional


def nearest(word: str, known: list[str], otherwise: str = "") -> str:
    """Words to end a message with: what of `known` may have been meant, if anything is like it."""
    close = difflib.get_close_matches(word.lower(), known, n=1)
    return f"; did you mean {close[0]}?" if close else otherwise


def convert(flag: str, text: str, kind: Any) -> Any:
    """`text` as a value of `kind`, or ConfigError with what is accepted."""
    kind, limits, optional = unwrap(kind)
    given = text or "''"
    if optional and text.lower() == "none":
        return None
    if typing.get_origin(kind) is Literal:
        choices = [str(c) for c in typing.get_args(kind)]
        if text not in choices:
            raise ConfigError(f"{flag} {given}: not one of {', '.join(choices)}{nearest(text, choices)}")
        return typing.get_args(kind)[choices.index(text)]
    if kind is bool:
        if text.lower() not in TRUE | FALSE:
            raise ConfigError(f"{flag} {text}: a yes or no is expected (true, false, yes, no, 1, 0, on, off)")
        return text.lower() in TRUE
    try:
        value = kind(text)
    except ValueError:
        name = {int: "a whole number", float: "a number"}.get(kind, kind.__name__)
        raise ConfigError(f"{flag} {given}: {name}{' or none' * optional} is expected") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{flag} {text}: a finite number is expected")
    return check(flag, value, limits)


def check(flag: str, value: Any, limits: list[str]) -> Any:
    for limit in limits:
        sign, bound = limit.split()
        if value is not None and not COMPARE[sign](value, float(bound)):
            raise ConfigError(f"{flag} {value}: must be {limit}")
    return value


def show(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def help_text(cls: type) -> str:
    lines, notes = [], comments(cls)
    for f in dataclasses.fields(cls):
        kind, limits, _ = unwrap(f.type)
        flag = "--" + f.name.replace("_", "-")
        default = f.default if f.default is not dataclasses.MISSING else f.default_factory()
        if kind is bool:
            flag += f" / --no-{f.name.replace('_', '-')}"
        accepts = (
            ", ".join(map(str, typing.get_args(kind)))
            if typing.get_origin(kind) is Literal
            else " and ".join(limits)
        )
        note = notes.get(f.name, "") + (f" [{accepts}]" if accepts else "")
        lines.append(f"  {flag:34s} {note} (default: {show(default) or 'empty'})")
    return "\n".join(lines)


def parse(
    cls: type, argv: list[str] | None = None, presets: dict[str, dict[str, dict[str, Any]]] | None = None
) -> Any:
    """Build `cls` from the command line (sys.argv by default); prints help or one line of error, and exits.

    `presets` maps a flag to {its value: {field: new default}}, "*" being any that isn't empty:
    `{"model": {"*": {"lr": 1e-6}}, "recipe": {"autotriton": {"lr": 1e-6}}}`. The last one wins, and a flag given over all.
    """
    argv = sys.argv[1:] if argv is None else argv
    if "-h" in argv or "--help" in argv:
        print((sys.modules[cls.__module__].__doc__ or "").strip() + "\n\noptions:\n" + help_text(cls))
        raise SystemExit(0)
    try:
        given = read(cls, argv)
        defaults: dict[str, Any] = {}
        for name, choices in (presets or {}).items():
            chosen = given.get(name, next(f.default for f in dataclasses.fields(cls) if f.name == name))
            defaults |= choices.get(chosen) or (choices.get("*", {}) if chosen else {})
        config = cls(**(defaults | given))
        if hasattr(config, "validate"):
            config.validate()
        if getattr(config, "out", "").endswith((".json", ".md")):
            writable(config.out)
        return config
    except ConfigError as error:
        die(error)


def read(cls: type, argv: list[str]) -> dict[str, Any]:
    """The flags of `argv` as {field: value}. Raises ConfigError."""
    fields = {f.name: f.type for f in dataclasses.fields(cls)}
    given: dict[str, Any] = {}
    rest = list(argv)
    while rest:
        flag, equals, text = rest.pop(0).partition("=")
        if not flag.startswith("--"):
            raise ConfigError(
                f"{flag or repr(flag)}: an option is expected here; they start with --, and --help lists them"
            )
        name = flag[2:].replace("-", "_")
        if negated := name.startswith("no_") and unwrap(fields.get(name[3:], str))[0] is bool:
            name = name[3:]
        if name not in fields:
            known = ["--" + n.replace("_", "-") for n in fields]
            raise ConfigError(f"unknown option {flag}{nearest(flag, known, '; --help lists them')}")
        if name in given:
            raise ConfigError(f"{flag} is given twice")
        kind, limits, _ = unwrap(fields[name])
        if negated:
            if equals:
                raise ConfigError(f"{flag} takes no value")
            given[name] = False
        elif kind is bool and not equals and not (rest and rest[0].lower() in TRUE | FALSE):
            given[name] = True
        elif typing.get_origin(kind) is list:
            words = text.replace(",", " ").split() if equals else []
            while not equals and rest and not rest[0].startswith("--"):
                words += rest.pop(0).replace(",", " ").split()
            if not words:
                raise ConfigError(f"{flag}: one or more values are expected")
            given[name] = [check(flag, convert(flag, w, typing.get_args(kind)[0]), limits) for w in words]
        else:
            if not equals:
                if not rest or rest[0].startswith("--"):
                    raise ConfigError(f"{flag}: a value is expected")
                text = rest.pop(0)
            given[name] = convert(flag, text, fields[name])
    return given
