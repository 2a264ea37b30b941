"""One HTML file of runs: style, scripts and data are inside, and it asks no network for anything.

Completions were written by a model that is not trusted. They reach the page as base64 and are set as text,
never as HTML. Besides, a content security policy lets no script run but the ones of web/, and
lets none of them reach a network.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from datetime import datetime
from importlib.resources import files
from typing import Any

from nanotriton.browse.runs import RunFolder, curves, difference, group_names, group_runs, status_mix
from nanotriton.browse.samples import Packed, pack
from nanotriton.verdict import UNSCORED

# In the order in which they use each other; main.js starts the page.
SCRIPTS = ("base", "status", "data", "search", "highlight", "diff", "chart", "curves", "facets", "list")
SCRIPTS += ("detail", "samples", "tasks", "settings", "main")

STYLES = ("base", "curves", "samples", "detail", "tasks")


def web(name: str) -> str:
    return (files("nanotriton.browse") / "web" / name).read_text(encoding="utf-8")


def index_of(runs: Sequence[RunFolder], samples: Packed) -> dict[str, Any]:
    """What the page knows when it opens: everything but the texts of the samples."""
    groups = group_runs(runs)
    of_run = {run: number for number, group in enumerate(groups) for run in group}
    return {
        "made": datetime.now().isoformat(timespec="minutes", sep=" "),
        "unscored": sorted(UNSCORED),
        "runs": [
            {
                "name": run.name,
                "group": of_run[number],
                "seed": run.seed,
                "settings": run.settings,
                "summary": run.summary,
                "ran": run.ran | run.inputs,
                "curves": curves(run.rows),
                "mix": status_mix(run.rows),
            }
            for number, run in enumerate(runs)
        ],
        "groups": [
            {"name": name, "runs": group, "differs": difference(runs, groups, number)}
            for number, (name, group) in enumerate(zip(group_names(runs, groups), groups))
        ],
        "samples": samples.index(),
    }


def page(runs: Sequence[RunFolder], limit: int) -> str:
    """The page of these runs, with at most about `limit` rows of samples of each."""
    samples = Packed()
    for number, run in enumerate(runs):
        samples.add_run(number, run.sample_files, limit)
    script = "\n".join(['"use strict";', *(web(f"{name}.js") for name in SCRIPTS)])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    blocks = [block("index", pack(json.dumps(index_of(runs, samples))))]
    blocks += [block(f"chunk-{number}", chunk) for number, chunk in enumerate(samples.chunks)]
    parts = {
        "title": html.escape(", ".join(run.name for run in runs)),
        "digest": digest,
        "style": "\n".join(web(f"{name}.css") for name in STYLES),
        "data": "\n".join(blocks),
        "script": script,
    }
    # in one pass, so that nothing inside a part is taken for a mark
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], web("page.html"))


def block(name: str, text: str) -> str:
    """Data that the browser keeps without looking at it."""
    return f'<script type="text/plain" id="{name}">{text}</script>'
