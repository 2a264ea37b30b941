"""A documented dataclass is the command line: every field is a flag, its comment is its help.

    @dataclass
    class Config:
        lr: Annotated[float, "> 0"] = 3e-3  # peak learning rate
        loss: Literal["dapo", "grpo"] = "dapo"  # how token losses are averaged
        ks: list[int] = field(default_factory=lambda: [1, 8])  # k of pass@k
        losses: LossOptions = field(default_factory=LossOptions)  # a dataclass: its fields are flags too

    config = parse(Config)        # --lr 1e-3 --loss=grpo --ks 1 8 16 --clip-low 0.1 --flag / --no-flag

`--help` lists the flags of a dataclass inside another one under the first line of its docstring.

A user's mistake ends in one line that names what is accepted, and exit code 2.
"""

import argparse
import ast
import copy
import dataclasses
import difflib
import json
import math
import operator
import os
import shlex
import sys
import textwrap
import types
import typing
from collections.abc import Iterable
from inspect import getsource
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn

TRUE, FALSE = {"true", "yes", "1", "on"}, {"false", "no", "0", "off"}
COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


class Options:
    """The base of a dataclass of options whose defaults depend on some of them, from flags and in Python.

    `presets` maps an option to {its value: {option: new default}}, where "*" stands for any value but the
    empty one: `{"model": {"*": {"lr": 1e-6}}, "recipe": {"autotriton": {"lr": 1e-5}}}`. Later presets win
    over earlier ones, and what is given wins over all. Options of a dataclass inside have presets too if it
    is an Options itself.
    """

    presets: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {}

    def __new__(cls, *args: Any, **given: Any) -> "Options":
        self = super().__new__(cls)
        names = [f.name for f in dataclasses.fields(cls)]
        self._given = {*names[: len(args)], *given}
        return self

    def __post_init__(self) -> None:
        if not self.presets:
            return
        given = set(self._given)
        for f in dataclasses.fields(self):
            if is_group(f):
                group = copy.copy(getattr(self, f.name))  # which may be somebody else's too
                given |= group._given if f.name in self._given else set()
                # all of it is given from now on, so that dataclasses.replace() keeps what it doesn't replace
                group._given = set(options(f.type))
                setattr(self, f.name, group)
        values = flat(self)
        for name, choices in self.presets.items():
            chosen = values[name]
            preset = choices.get(chosen, {})
            if chosen and not preset:
                preset = choices.get("*", {})
            for option, value in preset.items():
                if option not in given:
                    self._set(option, value)

    def _set(self, option: str, value: Any) -> None:
        """Set an option, which may be one of a dataclass inside."""
        for f in dataclasses.fields(self):
            if f.name == option:
                setattr(self, option, value)
            elif is_group(f) and option in options(f.type):
                setattr(getattr(self, f.name), option, value)


class ConfigError(ValueError):
    """One line that says what was wrong on the command line and what is accepted."""


def die(message: object, who: str = "error") -> NoReturn:
    """Print one line to stderr and exit with 2: the way every entry script answers a user's mistake."""
    print(f"{who}: {message}", file=sys.stderr)
    raise SystemExit(2)


class Parser(argparse.ArgumentParser):
    """A parser of plain arguments, whose errors are one line too. who: the line's first word."""

    def __init__(self, *args: Any, who: str = "error", **options: Any):
        super().__init__(*args, **options)
        self.who = who

    def error(self, message: str) -> NoReturn:
        die(message, self.who)


def json_object(flag: str, text: str) -> dict[str, Any]:
    """The JSON object that the value of a flag holds; {} for an empty value.

    ConfigError for anything else.
    """
    try:
        value = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise ConfigError(f"{flag} {text}: not JSON ({error.msg} at character {error.pos + 1})") from None
    if not isinstance(value, dict):
        raise ConfigError(f'{flag} {text}: a JSON object is expected, such as {{"enable_thinking": false}}')
    return value


def reason(error: Exception) -> str:
    """The cause of a failed read or write, without the path, which the caller names already."""
    if isinstance(error, UnicodeDecodeError):
        return f"no UTF-8 text (byte {error.start})"
    if isinstance(error, FileExistsError):  # where a folder was to be made
        return "a file is there"
    return getattr(error, "strerror", None) or str(error)


def writable(path: str) -> None:
    """Make the folder of a file of results, or ConfigError.

    It is called before minutes are spent on the results.
    """
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
    """Field name -> its help: the comment lines above the field, then its trailing one."""
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
            continue
        union = typing.get_origin(kind) in (types.UnionType, typing.Union)
        if not union or type(None) not in typing.get_args(kind):
            return kind, limits, optional
        kind = next(a for a in typing.get_args(kind) if a is not type(None))
        optional = True


def is_group(f: dataclasses.Field) -> bool:
    """Whether a field holds a dataclass, whose own fields are the options then."""
    return dataclasses.is_dataclass(f.type)


def options(cls: type) -> dict[str, dataclasses.Field]:
    """Every option of a command line by its name: the fields of `cls`, and those of the dataclasses in it."""
    found: dict[str, dataclasses.Field] = {}
    for f in dataclasses.fields(cls):
        more = options(f.type) if is_group(f) else {f.name: f}
        if twice := found.keys() & more.keys():
            raise TypeError(f"{cls.__name__} has two options named {min(twice)}")
        found |= more
    return found


def default(f: dataclasses.Field) -> Any:
    """The value of a field that is not given."""
    return f.default if f.default is not dataclasses.MISSING else f.default_factory()


def make(cls: type, **values: Any) -> Any:
    """Build `cls` from options by name. The others keep their defaults.

    Options of the dataclasses in `cls` are among them.

    make(Config, lr=1e-6, kl=0.1) is Config(lr=1e-6, losses=LossOptions(kl=0.1)).
    """
    if unknown := values.keys() - options(cls).keys():
        raise TypeError(f"{cls.__name__} has no option {min(unknown)}")
    own = {}
    for f in dataclasses.fields(cls):
        if is_group(f):
            inner = options(f.type).keys()
            own[f.name] = make(f.type, **{k: v for k, v in values.items() if k in inner})
        elif f.name in values:
            own[f.name] = values[f.name]
    return cls(**own)


def flat(cfg: Any) -> dict[str, Any]:
    """The options of a command line by name, as make() takes them."""
    values: dict[str, Any] = {}
    for f in dataclasses.fields(cfg):
        value = getattr(cfg, f.name)
        values |= flat(value) if is_group(f) else {f.name: value}
    return values


def usual(cls: type, settings: dict[str, Any]) -> dict[str, Any]:
    """The default of every option; of those that depend on others (presets), as `settings` has these."""
    chosen = {option: settings[option] for option in getattr(cls, "presets", {})}
    plain = flat(make(cls))
    return flat(make(cls, **chosen)) | {option: plain[option] for option in chosen}


def spelled(option: str, value: Any, default: Any) -> tuple[str, bool]:
    """An option as one types it, and whether one does: an empty value is typed as no option at all.

    ("kl", 0.1) is ("--kl 0.1", True), ("reward", "") is ("--reward", False). default: of one that is a yes or
    a no.
    """
    flag = "--" + option.replace("_", "-")
    if isinstance(value, bool):
        return (f"--no-{flag[2:]}" if default else flag), value != default
    if value is None or value == "":
        return flag, False
    words = value if isinstance(value, list) else [value]
    return " ".join([flag, *(shlex.quote(str(word)) for word in words)]), True


def nearest(word: str, known: list[str]) -> str:
    """The end of a message: the word of `known` that is most like `word`, if one is."""
    close = difflib.get_close_matches(word.lower(), known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def convert(flag: str, text: str, kind: Any) -> Any:
    """`text` as a value of `kind`, or ConfigError that says which values are accepted."""
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
    """The value, or ConfigError where it is beyond a limit such as "> 0"."""
    for limit in limits:
        sign, bound = limit.split()
        if value is not None and not COMPARE[sign](value, float(bound)):
            raise ConfigError(f"{flag} {value}: must be {limit}")
    return value


def show(value: Any) -> str:
    """A value as one types it."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def help_text(cls: type) -> str:
    """One line for each option; the options of a dataclass inside `cls` come last, under its docstring."""
    groups = [f.type for f in dataclasses.fields(cls) if is_group(f)]
    notes = comments(cls)
    lines = [help_line(f, notes.get(f.name, "")) for f in dataclasses.fields(cls) if not is_group(f)]
    for group in groups:
        title = (group.__doc__ or group.__name__).splitlines()[0]
        lines += ["", f"{title}:", help_text(group)]
    return "\n".join(lines)


def help_line(f: dataclasses.Field, note: str) -> str:
    """`  --flag   its comment [what it accepts] (default: its default)`"""
    kind, limits, _ = unwrap(f.type)
    flag = "--" + f.name.replace("_", "-")
    if kind is bool:
        flag += f" / --no-{f.name.replace('_', '-')}"
    accepts = " and ".join(limits)
    if typing.get_origin(kind) is Literal:
        accepts = ", ".join(map(str, typing.get_args(kind)))
    if accepts:
        note += f" [{accepts}]"
    return f"  {flag:34s} {note} (default: {show(default(f)) or 'empty'})"


def parse(cls: type, argv: list[str] | None = None) -> Any:
    """Build `cls` from the command line (sys.argv by default).

    Where that asks for help, or is wrong, it prints the help or one line of error, and exits.
    """
    argv = sys.argv[1:] if argv is None else argv
    if "-h" in argv or "--help" in argv:
        print((sys.modules[cls.__module__].__doc__ or "").strip() + "\n\noptions:\n" + help_text(cls))
        raise SystemExit(0)
    try:
        given = read(cls, argv)
        config = make(cls, **given)
        if hasattr(config, "validate"):
            config.validate()
        if hasattr(config, "ignored"):
            refuse_ignored(config.ignored(), given)
        if getattr(config, "out", "").endswith((".json", ".md")):
            writable(config.out)
        return config
    except ConfigError as error:
        die(error)


def refuse_ignored(reasons: dict[str, str], given: Iterable[str]) -> None:
    """ConfigError for an option that was given, and changes nothing: whoever gives it relies on it.

    reasons: {an option without effect: what it would need}.
    """
    for option in given:
        if option in reasons:
            raise ConfigError(f"--{option.replace('_', '-')} has no effect {reasons[option]}")


def read(cls: type, argv: list[str]) -> dict[str, Any]:
    """The flags of `argv` as {option: value}. Raises ConfigError."""
    kinds = {name: f.type for name, f in options(cls).items()}
    given: dict[str, Any] = {}
    rest = list(argv)
    while rest:
        flag, equals, text = rest.pop(0).partition("=")
        name, negated = option_of(flag, kinds)
        if name in given:
            raise ConfigError(f"{flag} is given twice")
        if negated and equals:
            raise ConfigError(f"{flag} takes no value")
        given[name] = False if negated else value_of(flag, kinds[name], text if equals else None, rest)
    return given


def option_of(flag: str, kinds: dict[str, Any]) -> tuple[str, bool]:
    """--lr -> ("lr", False), --no-plot -> ("plot", True). ConfigError for a flag that names no option."""
    if not flag.startswith("--"):
        given = flag or repr(flag)
        raise ConfigError(f"{given}: an option is expected here; they start with --, and --help lists them")
    name = flag[2:].replace("-", "_")
    positive = name.removeprefix("no_")
    if positive != name and unwrap(kinds.get(positive, str))[0] is bool:
        return positive, True
    if name not in kinds:
        # without their dashes, which make any two short options alike
        close = difflib.get_close_matches(name.lower(), kinds, n=1, cutoff=0.7)
        end = f"; did you mean --{close[0].replace('_', '-')}?" if close else "; --help lists them"
        raise ConfigError(f"unknown option {flag}{end}")
    return name, False


def value_of(flag: str, annotation: Any, text: str | None, rest: list[str]) -> Any:
    """The value of a flag: from the `text` behind its equals sign, or else from the words after it.

    Those words are taken out of `rest`.
    """
    kind, limits, _ = unwrap(annotation)
    words_follow = bool(rest) and not rest[0].startswith("--")
    if typing.get_origin(kind) is list:
        words = [] if text is None else [text]
        while text is None and rest and not rest[0].startswith("--"):
            words.append(rest.pop(0))
        items = " ".join(words).replace(",", " ").split()
        if not items:
            raise ConfigError(f"{flag}: one or more values are expected")
        return [check(flag, convert(flag, item, typing.get_args(kind)[0]), limits) for item in items]
    if text is None and kind is bool and not (rest and rest[0].lower() in TRUE | FALSE):
        return True
    if text is None and not words_follow:
        raise ConfigError(f"{flag}: a value is expected")
    return convert(flag, rest.pop(0) if text is None else text, annotation)
