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


def check_settings(
    folder: Path, was: dict | None, settings: dict[str, Any], grows: str, otherwise: str
) -> bool:
    """Whether the run in this folder, whose settings `was` has, is to go on for longer than it was meant to.

    grows: the option that may be larger than it was (steps). otherwise: what the user can do instead, such as
    "another --name, or --fresh". ConfigError if it can't continue with these
    settings.
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
    changed = {k for k in settings if was[k] != settings[k]} - FREE
    grown = grows in changed and 0 < was[grows] < settings[grows]  # 0 stands for something else than a number
    if grown:
        changed.remove(grows)
    told = [f"--{k.replace('_', '-')} {was[k]}" + " (it may grow)" * (k == grows) for k in sorted(changed)]
    if told:
        raise config.ConfigError(f"{folder} holds a run with {', '.join(told)}: give those, or {otherwise}")
    before, now = was.get("minutes", 0), settings.get("minutes", 0)
    return grown or bool(before and (before < now or not now))  # 0: no limit
