"""The journal's rows become sets: routes combine, no operator takes over, what is left out stays known."""

from collections import Counter

import pytest

from nanotriton.collect import report
from nanotriton.collect.sets import capped, operators_of, sort


def row(key: str, status: str = "kept", split: str = "train", **more) -> dict:
    """A row of the journal."""
    meta = {
        "route": more.pop("route", "compose"),
        "origin": "x",
        "operators": more.pop("operators", ["relu"]),
    }
    return {
        "key": key,
        "source": more.pop("source", f"source of {key}"),
        "module": more.pop("module", key),
        "small": more.pop("small", ""),
        "solution": "" if status == "task" else f"solution of {key}",
        "reasoning": "",
        "status": status,
        "split": split,
        "message": more.pop("message", ""),
        "seconds": 0.0,
        "meta": meta,
    }


def names(rows: list[dict]) -> list[str]:
    return [r["name"] for r in rows]


def test_a_module_that_two_routes_solved_gives_two_pairs_and_no_task():
    rows = [row("a"), row("a-compile", route="compile", module="a"), row("b", "task")]
    rows += [row("b-compile", module="b"), row("c", "task"), row("c-compile", "task", module="c")]
    kept, pairs = sort(rows, 1.0, False)
    assert names(kept["sft"]) == ["a", "a-compile", "b-compile"] == [r["key"] for r in pairs]
    assert names(kept["rl"]) == ["c"]


def test_what_is_held_out_is_in_no_other_set_and_there_once():
    rows = [row("a", split="held_out_shape"), row("a-compile", split="held_out_shape", module="a")]
    rows += [row("b", "task", "held_out_operator"), row("c"), row("d", "wrong_value")]
    kept, _ = sort(rows, 1.0, False)
    assert names(kept["sft"]) == ["c"] and kept["rl"] == []
    assert [(r["name"], r["split"]) for r in kept["heldout"]] == [
        ("a", "held_out_shape"),
        ("b", "held_out_operator"),
    ]


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
def test_no_operator_is_in_more_pairs_than_its_share(share):
    often = [row(f"often {i}", operators=["relu", f"op{i % 40}"]) for i in range(300)]
    seldom = [row(f"seldom {i}", operators=[f"op{i % 60}", f"op{(i + 7) % 60}"]) for i in range(200)]
    rows = often + seldom
    kept = capped(rows, share)
    count = Counter(name for r in kept for name in operators_of(r))
    assert max(count.values()) <= share * len(kept)
    assert [r["key"] for r in kept] == [r["key"] for r in rows if r in kept]
    assert len(kept) > 200  # the rows without the common operator are nearly all there


def test_a_share_of_one_keeps_all_and_an_operator_is_never_lost():
    rows = [row(f"{i}", operators=["relu"]) for i in range(9)]
    assert capped(rows, 1.0) == rows
    assert len(capped(rows, 0.05)) == 1


def test_an_operator_is_counted_under_one_name():
    assert operators_of(row("a", operators=["linear", "mm", "conv2d"])) == {"matmul", "conv"}


def test_a_card_tells_tasks_apart_from_what_was_lost(tmp_path):
    rows = [row("a"), row("b", "task", message="no Triton for fft"), row("c", "wrong_value", message="off")]
    hard = row("d", "task")
    hard["meta"]["withheld"] = True
    kept, _ = sort([*rows, hard], 1.0, False)
    numbers = report.report([*rows, hard], kept, {}, 1.0, len)
    assert numbers["reasons"] == {"wrong_value: off": 1}
    withheld = "task: its solution is withheld, as those of all hard draws"
    assert numbers["rl_reasons"] == {"task: no Triton for fft": 1, withheld: 1}
    report.write(tmp_path, numbers, kept, len)
    card = (tmp_path / "report.md").read_text()
    lost = card.split("## Why candidates were lost")[1].split("## ")[0]
    assert "fft" not in lost and "1 x wrong_value: off" in lost
    assert "| x | 4 | 1 | 2 | not known |" in card and (tmp_path / "histograms.png").stat().st_size > 1000


def test_the_licence_of_an_installed_package_is_what_its_metadata_says():
    assert "BSD" in report.licence("torch.nn")
    assert report.licence("no_package_of_this_name") == "not known"
