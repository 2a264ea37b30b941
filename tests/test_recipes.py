"""The tables of docs/recipes.md say what the scripts do."""

import re
from pathlib import Path

import pytest

import train_grpo
import train_sft
from nanotriton import config

RECIPES = (Path(__file__).parent.parent / "docs" / "recipes.md").read_text()
COLUMNS = ([], ["--model", "X"], ["--model", "X", "--recipe", "autotriton"])


def show(value: object) -> str:
    if value is None:
        return "none"
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
    )


@pytest.mark.parametrize("module", [train_sft, train_grpo])
def test_the_recipes_have_the_numbers_of_the_scripts(module):
    """After a change of a default, change the table too: this prints the row that it should have."""
    configs = [config.flat(config.parse(module.Config, argv)) for argv in COLUMNS]
    table = RECIPES.split(f"| `{module.__name__}.py` | laptop |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `--([\w-]+)` \| (.*?) \| (.*?) \| (.*?) \| .+ \|$", table, flags=re.MULTILINE)
    assert len(rows) >= 8
    for flag, *cells in rows:
        assert cells == [show(c[flag.replace("-", "_")]) for c in configs], flag
