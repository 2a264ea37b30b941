"""The command line made from a dataclass: every form of a flag, and one clear line for every mistake."""

import copy
import dataclasses
import itertools
import pickle
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import pytest

import sample
import train_grpo
import train_sft
from nanotriton import config


@dataclass
class Demo:
    lr: Annotated[float, "> 0", "<= 1"] = 3e-3  # peak learning rate
    steps: Annotated[int, ">= 1"] = 10  # optimizer steps
    loss: Literal["dapo", "grpo", "dr_grpo"] = "dapo"  # how token losses are averaged
    plot: bool = True  # draw curves.png
    ks: list[int] = field(default_factory=lambda: [1, 8])  # k of pass@k
    cap: float | None = None  # no cap when none
    model: str = ""  # a folder
    recipe: Literal["default", "autotriton"] = "default"  # a preset

    def validate(self):
        if self.steps == 13:
            raise config.ConfigError("--steps 13: not on a Friday")


def parse(*argv):
    return config.parse(Demo, list(argv))


def test_every_form_of_a_flag():
    assert parse() == Demo()
    got = parse(
        "--lr=1e-4",
        "--steps",
        "7",
        "--no-plot",
        "--ks",
        "2",
        "4",
        "--loss",
        "grpo",
        "--cap",
        "none",
        "--model",
        "a b",
    )
    assert got == Demo(lr=1e-4, steps=7, plot=False, ks=[2, 4], loss="grpo", model="a b")
    assert parse("--ks=3,5").ks == [3, 5]
    assert parse("--plot", "false").plot is False and parse("--plot").plot is True
    assert parse("--lr", "1").lr == 1.0
    assert parse("--model=").model == ""


@dataclass
class Part(config.Options):
    """A part"""

    low: float = 0.1  # a bound
    high: float = 0.2  # another


@dataclass
class Whole(config.Options):
    presets: ClassVar = {
        "model": {"*": {"lr": 1e-5, "steps": 3, "low": 0.3}},
        "recipe": {"autotriton": {"lr": 1e-6, "steps": 5, "high": 0.4}},
    }

    lr: float = 3e-3  # peak learning rate
    steps: int = 10  # optimizer steps
    model: str = ""  # a folder
    recipe: Literal["default", "autotriton"] = "default"  # a preset
    part: Part = field(default_factory=Part)


BOTH = {"lr": 1e-6, "steps": 5, "model": "m", "recipe": "autotriton", "low": 0.3, "high": 0.4}
GIVEN = {  # what is given -> what that makes of the rest
    (): {},
    ("model=m",): {"lr": 1e-5, "steps": 3, "low": 0.3},
    ("recipe=autotriton",): {"lr": 1e-6, "steps": 5, "high": 0.4},
    ("model=m", "recipe=autotriton"): BOTH,
    ("model=m", "lr=0.003", "low=0.1"): {"steps": 3},
    ("recipe=autotriton", "steps=10", "high=0.2"): {"lr": 1e-6},
}


@pytest.mark.parametrize("given", GIVEN)
def test_presets_give_way_to_what_is_given_on_a_command_line_and_in_python(given):
    words = dict(word.split("=") for word in given)
    from_flags = config.parse(Whole, [f"--{word}" for word in given])
    values = {k: type(config.flat(Whole())[k])(v) for k, v in words.items()}
    own = {k: v for k, v in values.items() if k not in ("low", "high")}
    part = {k: v for k, v in values.items() if k in ("low", "high")}
    in_python = Whole(**own, part=Part(**part)) if part else Whole(**own)
    assert from_flags == in_python == config.make(Whole, **values)
    assert config.flat(in_python) == config.flat(Whole()) | values | GIVEN[given]
    assert dataclasses.replace(in_python, steps=7) == config.make(
        Whole, **config.flat(in_python) | {"steps": 7}
    )
    assert copy.deepcopy(in_python) == pickle.loads(pickle.dumps(in_python)) == in_python


@pytest.mark.parametrize(
    "script, argv, says",
    [
        (train_grpo, "--order given", "--order has no effect without --tasks"),
        (train_grpo, "--no-preflight", "--preflight has no effect without --tasks or --heldout"),
        (
            train_grpo,
            "--model m --sft-steps 5",
            "--sft-steps has no effect with --model: it is for the small",
        ),
        (train_grpo, "--model m --sft-teacher habits", "--sft-teacher has no effect with --model"),
        (
            train_grpo,
            "--template {}",
            "--template has no effect without --model: the small model has no chat",
        ),
        (train_grpo, "--eval-tasks 0 --heldout x", "--heldout has no effect with --eval-tasks 0"),
        (train_grpo, "--mismatch-high 3", "--mismatch-high has no effect with --mismatch bypass"),
        (train_grpo, "--model m --kl-estimator k2", "--kl-estimator has no effect with --kl 0"),
        (train_sft, "--epochs 2", "--epochs has no effect with --steps 1600: 0 makes it as many steps as"),
        (train_sft, "--data x --examples 3", "--examples has no effect with --data"),
        (train_sft, "--data x --eval-tasks 3", "--eval-tasks has no effect with --data"),
        (train_sft, "--eval-tasks 0 --max-tokens 3", "--max-tokens has no effect where nothing is sampled"),
        (train_sft, "--model m --layers 3", "--layers has no effect with --model: its own is taken"),
        (sample, "--file x --model m --key-env X", "--key-env has no effect without --endpoint"),
    ],
)
def test_an_option_without_effect_is_refused(capsys, script, argv, says):
    with pytest.raises(SystemExit) as stop:
        config.parse(script.Config, argv.split())
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.startswith(f"error: {says}") and error.count("\n") == 1


@pytest.mark.parametrize("script", [train_grpo, train_sft, sample])
def test_what_is_called_ignored_are_options(script):
    for changes in ({}, {"model": "m"}, {"model": "m", "data": "d"}, {"model": "m", "eval_tasks": 0}):
        known = config.options(script.Config)
        cfg = config.make(script.Config, **{k: v for k, v in changes.items() if k in known})
        assert cfg.ignored().keys() <= known.keys()


@pytest.mark.parametrize(
    "script, argv",
    [
        (train_grpo, "--tasks t --order given --no-preflight"),
        (train_grpo, "--heldout t --no-preflight"),
        (train_grpo, "--sft-steps 5"),
        (train_grpo, "--model m --kl 0.1 --kl-estimator k2 --mismatch token_mask --mismatch-high 3"),
        (train_grpo, "--model m --recipe autotriton --template {} --kl 0"),
        (train_grpo, "--eval-tasks 0"),
        (train_sft, "--steps 0 --epochs 2"),
        (train_sft, "--model m --epochs 2 --data x --eval-tasks 0"),
        (train_sft, "--layers 3 --examples 9 --max-tokens 9"),
    ],
)
def test_what_has_an_effect_is_taken_and_so_are_defaults_without_one(script, argv):
    config.parse(script.Config, argv.split())


def test_a_part_that_somebody_else_has_too_is_left_alone():
    part = Part(high=0.9)
    assert Whole(model="m", part=part).part == Part(0.3, 0.9) and part == Part(0.1, 0.9)


def test_the_training_scripts_are_the_same_from_python():
    """A pretrained model doesn't get the small one's learning rate because it comes without a command line."""
    for script, argv in itertools.product((train_grpo, train_sft), ([], ["--recipe", "autotriton"])):
        flags = config.parse(script.Config, ["--model", "m", *argv])
        python = script.Config(model="m", **({"recipe": "autotriton"} if argv else {}))
        assert python == flags and python.lr < script.Config().lr / 100


@pytest.mark.parametrize("flag", ["--reward", "--order", "--group", "--heldout"])
def test_another_scripts_option_is_not_taken_for_one_that_is_unlike_it(flag):
    known = {name: field.type for name, field in config.options(train_sft.Config).items()}
    with pytest.raises(config.ConfigError, match=f"unknown option {flag}; --help lists them"):
        config.option_of(flag, known)


@pytest.mark.parametrize(
    "argv, says",
    [
        (["--lrr", "1"], "unknown option --lrr; did you mean --lr?"),
        (["--zzz"], "unknown option --zzz; --help lists them"),
        (["lr"], "lr: an option is expected here; they start with --"),
        (["--plot", "maybe"], "maybe: an option is expected here"),
        (["--cap", "x"], "--cap x: a number or none is expected"),
        (["--lr="], "--lr '': a number is expected"),
        (["--lr", "fast"], "--lr fast: a number is expected"),
        (["--lr", "nan"], "a finite number is expected"),
        (["--lr", "inf"], "a finite number is expected"),
        (["--lr", "0"], "--lr 0.0: must be > 0"),
        (["--lr", "2"], "--lr 2.0: must be <= 1"),
        (["--steps", "1.5"], "--steps 1.5: a whole number is expected"),
        (["--steps"], "--steps: a value is expected"),
        (["--steps", "--lr"], "--steps: a value is expected"),
        (["--steps", "13"], "not on a Friday"),
        (["--steps", "1", "--steps", "2"], "given twice"),
        (["--loss", "dappo"], "--loss dappo: not one of dapo, grpo, dr_grpo; did you mean dapo?"),
        (["--loss", "GRPO"], "--loss GRPO: not one of dapo, grpo, dr_grpo; did you mean grpo?"),
        (["--loss", "foo"], "--loss foo: not one of dapo, grpo, dr_grpo\n"),
        (["--plot=maybe"], "--plot maybe: a yes or no is expected"),
        (["--no-plot=1"], "takes no value"),
        (["--ks"], "one or more values"),
        (["--ks", "1", "x"], "--ks x: a whole number is expected"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(argv, says, capsys):
    with pytest.raises(SystemExit) as stop:
        parse(*argv)
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and out == "" and says in err and err.count("\n") == 1


def test_help_shows_each_option_with_default_and_comment(capsys):
    with pytest.raises(SystemExit) as stop:
        parse("--help")
    text = capsys.readouterr().out
    assert stop.value.code == 0
    for words in (
        "--lr",
        "peak learning rate",
        "default: 0.003",
        "dapo, grpo, dr_grpo",
        "--plot / --no-plot",
        "default: 1 8",
        "> 0 and <= 1",
    ):
        assert words in text


def test_a_file_of_results_can_be_written_before_anything_is_done(tmp_path, capsys):
    @dataclass
    class Bench:
        out: str = ""  # where results go

    config.parse(Bench, ["--out", str(tmp_path / "new" / "r.json")])
    assert (tmp_path / "new").is_dir() and config.parse(Bench, []).out == ""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.json").mkdir()
    for name, says in (
        ("file/r.json", "file: a file is there"),
        ("folder.json", "a file is expected, this is a folder"),
    ):
        with pytest.raises(SystemExit):
            config.parse(Bench, ["--out", str(tmp_path / name)])
        error = capsys.readouterr().err
        assert says in error and error.count("\n") == 1


@dataclass
class Inner:
    """The loss"""

    low: Annotated[float | None, "> 0"] = None  # lower bound
    kl: Annotated[float, ">= 0"] = 0.0  # weight of the KL term


@dataclass
class Outer:
    steps: int = 3  # optimizer steps
    losses: Inner = field(default_factory=Inner)


def test_a_dataclass_inside_gives_its_own_flags(capsys):
    argv = ["--kl", "0.5", "--steps=4", "--low", "none"]
    assert config.parse(Outer, argv) == Outer(4, Inner(None, 0.5))
    assert config.flat(Outer(4, Inner(0.1))) == {"steps": 4, "low": 0.1, "kl": 0.0}
    assert config.make(Outer, **config.flat(Outer(4, Inner(0.1)))) == Outer(4, Inner(0.1))
    with pytest.raises(TypeError, match="no option k2"):
        config.make(Outer, k2=1)
    for flag, says in (("--kl=-1", "--kl -1.0: must be >= 0"), ("--losses", "unknown option --losses")):
        with pytest.raises(SystemExit):
            config.parse(Outer, [flag])
        assert says in capsys.readouterr().err
    with pytest.raises(SystemExit):
        config.parse(Outer, ["--help"])
    lines = capsys.readouterr().out.split("options:\n")[1].splitlines()
    assert [line.split()[0] for line in lines if line] == ["--steps", "The", "--low", "--kl"]
    assert lines[2] == "The loss:" and "weight of the KL term [>= 0] (default: 0.0)" in lines[4]


def test_an_option_is_spelled_as_one_types_it():
    assert config.spelled("reward", "", "") == ("--reward", False)
    assert config.spelled("preflight", False, True) == ("--no-preflight", True)
    assert config.spelled("ahead", False, False) == ("--ahead", False)
    assert config.spelled("ks", [1, 8], []) == ("--ks 1 8", True)
    assert config.spelled("sft_steps", 0, 5) == ("--sft-steps 0", True)
    assert config.spelled("template", '{"a": 1}', "") == ("""--template '{"a": 1}'""", True)


def test_two_options_of_one_name_are_our_mistake():
    @dataclass
    class Twice:
        kl: float = 1.0  # one
        losses: Inner = field(default_factory=Inner)

    with pytest.raises(TypeError, match="two options named kl"):
        config.options(Twice)
