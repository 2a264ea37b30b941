"""The README's tables of recipes say what the scripts do."""

import re
from pathlib import Path

import pytest

import train_grpo
import train_sft
from nanotriton import config

README = (Path(__file__).parent.parent / "README.md").read_text()
COLUMNS = ([], ["--model", "X"], ["--model", "X", "--recipe", "autotriton"])


def show(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize("module", [train_sft, train_grpo])
def test_the_readme_has_the_numbers_of_the_scripts(module):
    """After a change of a default, change the table too: this prints the row that it should have."""
    configs = [config.parse(module.Config, argv, module.PRESETS) for argv in COLUMNS]
    table = README.split(f"| `{module.__name__}.py` | laptop |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `--([\w-]+)` \| (.*?) \| (.*?) \| (.*?) \| .+ \|$", table, flags=re.MULTILINE)
    assert len(rows) >= 8
    for flag, *cells in rows:
        assert cells == [show(getattr(c, flag.replace("-", "_"))) for c in configs], flag


def test_the_learning_rate_rises_stays_and_falls():
    rate = [train_grpo.learning_rate(step, 100, 2.0, 0.05, 0.4) for step in range(100)]
    assert rate[:5] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0]) and set(rate[5:61]) == {2.0}
    assert rate[61:] == pytest.approx([2.0 * left / 40 for left in range(39, 0, -1)])  # the last step still moves
    assert [train_grpo.learning_rate(step, 9, 2.0, 0.0, 0.0) for step in range(9)] == [2.0] * 9
