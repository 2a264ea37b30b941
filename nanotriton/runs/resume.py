"""May a run continue in the folder of an earlier start? Its settings and its files must be those of then."""

import json
from pathlib import Path
from typing import Any

from nanotriton import config

# Options that may differ when a run is continued. Some name the run; the others change how fast it goes, how
# often it is saved and measured, how long a candidate may take, and who else is told of it, but not what is
# learned from the rest.
FREE = {
    "name",
    "out",
    "fresh",
    "minutes",
    "micro_tokens",
    "timeout",
    "save_every",
    "eval_every",
    "tensorboard",
    "wandb",
}


def read_settings(path: Path) -> dict | None:
    """The settings in a run's config.json; None where there are none, or no JSON."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def check_kind(folder: Path, was: dict | None, settings: dict[str, Any], otherwise: str) -> None:
    """ConfigError if what is in the folder is no run of this script. `was`: the settings in its config.json.

    otherwise: what the user can do who can't continue it, such as "another --name, or --fresh".
    """
    if not was:
        path = folder / "config.json"
        raise config.ConfigError(
            f"{path} holds no settings of a run: give another --name, or delete {folder}"
        )
    if set(was) != set(settings):
        raise config.ConfigError(
            f"{folder} holds a run of another script, or of another version of this one: give {otherwise}"
        )


def check_settings(
    folder: Path, was: dict[str, Any], settings: dict[str, Any], kind: type, grows: str, otherwise: str
) -> bool:
    """Whether the run in this folder, whose settings `was` has, is to go on for longer than it was meant to.

    kind: the class of the script's options. grows: the option that may be larger than it was (steps).
    otherwise: see check_kind(). ConfigError if it can't continue with these settings.
    """
    changed = {k for k in settings if was[k] != settings[k]} - FREE
    grown = grows in changed and 0 < was[grows] < settings[grows]  # 0 stands for something else than a number
    if grown:
        changed.remove(grows)
    if changed:
        raise config.ConfigError(
            f"{folder} holds a run that was started {started(was, settings, changed, kind, grows)}: "
            f"start it like that, or give {otherwise}"
        )
    before, now = was.get("minutes", 0), settings.get("minutes", 0)
    return grown or bool(before and (before < now or not now))  # 0: no limit


def started(was: dict[str, Any], settings: dict[str, Any], changed: set[str], kind: type, grows: str) -> str:
    """How a run was started whose settings differ in these options: "with --lr 0.1, and without --reward".

    Where --model is given many defaults are others. So only those options are named that were given, then or
    now; the others follow.
    """
    before, now = config.usual(kind, was), config.usual(kind, settings)
    given = {k for k in changed if was[k] != before[k] or settings[k] != now[k]}
    without, having = [], []
    for option in sorted(given or changed):
        words, is_given = config.spelled(option, was[option], now[option])
        (having if is_given else without).append(words + " (it may grow)" * (option == grows))
    parts = (
        f"{word} {', '.join(these)}" for word, these in (("with", having), ("without", without)) if these
    )
    return ", and ".join(parts)
