"""What a page of runs is given: metrics, settings, seeds of one setting, packed samples. No browser is needed."""

import base64
import doctest
import json
import re
import zlib
from pathlib import Path

import pytest

from nanotriton import log
from nanotriton.browse import __main__ as browse
from nanotriton.browse import page, runs, samples
from nanotriton.rollout import Episode
from nanotriton.rules.extract import extract_candidate
from nanotriton.tasks.task import Task
from nanotriton.verdict import STATUSES
from tests.run_folders import many_samples, metrics, sample, write_run


def unpack(text: str):
    return json.loads(zlib.decompress(base64.b64decode(text)))


def read_page(path: Path) -> tuple[dict, list[dict]]:
    """The index and the chunks of a page, as its script reads them."""
    blocks = dict(re.findall(r'<script type="text/plain" id="([\w-]+)">([^<]*)</script>', path.read_text()))
    chunks = [unpack(text) for name, text in blocks.items() if name.startswith("chunk-")]
    return unpack(blocks["index"]), chunks


def rows_of(index: dict, chunks: list[dict]) -> list[dict]:
    """The samples of a page, put together again."""
    found, columns, packed = [], index["samples"]["columns"], index["samples"]
    for start, chunk in zip(packed["starts"], chunks):
        for i, (completion, verdict, others, _) in enumerate(chunk["rows"], start=start):
            found.append(
                {
                    "step": columns["step"][i],
                    "split": packed["splits"][columns["split"][i]],
                    "group": columns["group"][i],
                    "task": packed["tasks"][columns["task"][i]],
                    "task_source": chunk["sources"][str(columns["task"][i])],
                    "completion": completion,
                    "verdict": verdict,
                    "finish_reason": packed["finishes"][columns["finish"][i]],
                    "tokens": columns["tokens"][i],
                    "reward": columns["reward"][i],
                    "advantage": columns["advantage"][i],
                    "count": columns["count"][i],
                }
                | others
            )
    return found


# ---- runs


def test_a_page_holds_every_sample_and_number_of_a_run(tmp_path, capsys):
    written = many_samples(500)
    written[7] = sample(1, 3, 0, "wrong_value", 5, completion="</script>\ud83d é\0", parts={"speed": 0.5})
    folder = write_run(tmp_path / "a", metrics(9), written)
    browse.main([str(folder)])
    index, chunks = read_page(folder / "browse.html")
    assert rows_of(index, chunks) == written
    run = index["runs"][0]
    assert run["curves"]["grpo"]["reward"] == [
        list(range(1, 10)),
        [r["reward"] for r in metrics(9) if r["stage"] == "grpo"],
    ]
    assert run["curves"]["grpo"]["seconds.sample"][1] == [1.5] * 9
    assert run["curves"]["grpo/test"]["success"] == [[0, 9], [0.4, 0.6]]
    assert run["mix"]["grpo"]["counts"]["wrong_value"] == [
        r["statuses"]["wrong_value"] for r in metrics(9) if r["stage"] == "grpo"
    ]
    assert "browse.html is written: 1 run, " in capsys.readouterr().out


def test_a_page_lies_with_its_runs_and_not_where_the_command_was_given(tmp_path, capsys, monkeypatch):
    """In a checkout git would see it."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("out/a", "out/b", "other/c"):
        write_run(tmp_path / name, metrics(2))
    for given in (["../out"], ["../out/b", "../other/c"]):
        browse.main(given)
        assert capsys.readouterr().out.startswith("../out/browse.html is written: 2 runs")
        (tmp_path / "out" / "browse.html").unlink()
    assert not any((tmp_path / "here").iterdir())


def test_texts_lie_in_chunks_of_a_bounded_size():
    packed = samples.Packed()
    for row in many_samples(3000):
        packed.add(0, row)
    packed.close_chunk()
    assert len(packed.chunks) == len(packed.starts) > 3
    longest = max(len(zlib.decompress(base64.b64decode(chunk))) for chunk in packed.chunks)
    assert longest < 1.1 * samples.CHUNK_CHARS


def test_seeds_of_one_setting_are_one_group(tmp_path):
    for name, settings in {
        "base-s0": dict(seed=0),
        "base-s1": dict(seed=1, began="today", micro_tokens=512),
        "low-s0": dict(seed=0, lr=1e-5),
        "low-s1": dict(seed=1, lr=1e-5),
        "alone": dict(seed=0, lr=1e-5, loss="grpo"),
    }.items():
        write_run(tmp_path / name, metrics(2), **settings)
    found = runs.find_runs([tmp_path])
    groups = runs.group_runs(found)
    named = {
        name: [found[i].name for i in group] for name, group in zip(runs.group_names(found, groups), groups)
    }
    assert named == {"alone": ["alone"], "base": ["base-s0", "base-s1"], "low": ["low-s0", "low-s1"]}
    assert runs.difference(found, groups, 0) == "lr=1e-05 loss=grpo"


def test_settings_whose_runs_have_like_names_are_told_apart(tmp_path):
    for seed, lr in ((0, 1), (1, 1), (2, 2), (3, 2)):
        write_run(tmp_path / f"run{seed}", metrics(1), seed=seed, lr=lr)
    found = runs.find_runs([tmp_path])
    assert runs.group_names(found, runs.group_runs(found)) == ["run (lr=1)", "run (lr=2)"]


def test_runs_without_settings_are_not_taken_for_seeds_of_one(tmp_path):
    for name in ("a", "b"):
        (write_run(tmp_path / name, metrics(1)) / "config.json").unlink()
    assert runs.group_runs(runs.find_runs([tmp_path])) == [[0], [1]]


def test_runs_whose_files_differ_are_not_seeds_of_one_setting(tmp_path):
    for name, digest in (("a-s0", "1" * 64), ("a-s1", "1" * 64), ("a-s2", "2" * 64)):
        place = (
            write_run(tmp_path / name, metrics(1), reward="my_reward.py", seed=int(name[-1])) / "provenance"
        )
        place.mkdir()
        (place / "inputs.json").write_text(json.dumps({"reward": {"my_reward.py": digest}}))
        starts = [
            {"argv": ["train.py", "--tasks", "my tasks"], "commit": commit} for commit in ("old", "new")
        ]
        (place / "starts.jsonl").write_text("".join(json.dumps(start) + "\n" for start in starts))
    found = runs.find_runs([tmp_path])
    groups = runs.group_runs(found)
    assert groups == [[0, 1], [2]]
    assert runs.difference(found, groups, 1) == f"--reward my_reward.py={'2' * 16}"
    assert found[0].ran == {"argv": "train.py --tasks 'my tasks'", "commit": "new", "starts": 2}


def test_runs_of_one_name_are_named_by_the_folders_above(tmp_path):
    folders = [write_run(tmp_path / where / "laptop", metrics(1)) for where in ("one", "two")]
    assert [run.name for run in runs.find_runs([*folders, folders[0]])] == ["one/laptop", "two/laptop"]


def test_a_run_that_is_called_sft_is_one_of_its_folder_and_not_the_whole_of_it(tmp_path):
    write_run(tmp_path / "laptop" / "sft", metrics(1))  # GRPO that is still in its own SFT
    assert [run.name for run in runs.find_runs([tmp_path / "laptop"])] == ["laptop"]
    write_run(tmp_path / "sft", metrics(1))  # train_sft.py's default name
    assert [run.name for run in runs.find_runs([tmp_path])] == ["laptop", "sft"]


@pytest.mark.parametrize(
    "names, common",
    [
        (["laptop-0", "laptop-1"], "laptop"),
        (["base_s0", "base_s12"], "base"),
        (["seed1", "seed2"], "seed"),
        (["tests0", "tests1"], "tests"),
        (["a", "b"], ""),
        (["x-seed-1"], "x-seed-1"),
    ],
)
def test_the_name_of_a_setting_is_what_its_runs_share(names, common):
    assert runs.common_name(names) == common


def test_the_stage_before_is_read_too(tmp_path):
    folder = write_run(tmp_path / "a", metrics(2), many_samples(8))
    sft = sample(3, 0, 0, "correct", 1, split="dev/greedy")
    write_run(folder / "sft", [{"stage": "sft", "step": 1, "loss": 2.0, "seconds": {}}], [sft])
    browse.main([str(folder)])
    index, chunks = read_page(folder / "browse.html")
    assert index["runs"][0]["curves"]["sft"]["loss"] == [[1], [2.0]]
    assert rows_of(index, chunks) == [sft, *many_samples(8)]
    assert len(index["runs"]) == 1  # the stage is no run of its own
    assert [run.name for run in runs.find_runs([folder / "sft"])] == ["sft"]  # unless it is asked for


def test_a_run_that_goes_on_is_shown_up_to_its_last_whole_line(tmp_path):
    folder = write_run(tmp_path / "a", metrics(2), many_samples(8))
    for name in ("metrics.jsonl", "samples.jsonl"):
        with open(folder / name, "a") as file:
            file.write('{"stage": "gr')
    (folder / "summary.json").unlink(missing_ok=True)
    browse.main([str(folder)])
    index, chunks = read_page(folder / "browse.html")
    assert len(rows_of(index, chunks)) == 8 and index["runs"][0]["summary"] == {}


def test_numbers_that_json_does_not_know_become_none(tmp_path):
    row = {"stage": "grpo", "step": 1, "loss": float("nan"), "norm": float("inf"), "on": True, "reward": 1}
    folder = write_run(tmp_path / "a", [row])
    (found,) = runs.find_runs([folder])
    assert runs.curves(found.rows) == {
        "grpo": {"loss": [[1], [None]], "norm": [[1], [None]], "reward": [[1], [1]]}
    }


# ---- samples


def test_of_a_long_run_some_steps_are_kept_whole(tmp_path):
    written = many_samples(2048)  # 8 steps of 256
    folder = write_run(tmp_path / "a", metrics(8), written)
    browse.main([str(folder), "--rows", "1000", "--out", str(tmp_path / "page.html")])
    index, chunks = read_page(tmp_path / "page.html")
    assert rows_of(index, chunks) == [row for row in written if row["step"] in (1, 4, 7)]
    assert index["samples"]["skipped"] == [{"run": 0, "every": 3}]


def test_causes_are_counted_without_what_is_particular_to_a_sample():
    assert doctest.testmod(samples) == (0, 3)
    reason = samples.reason_of
    assert (
        reason("compile_error", "NameError('x7' is not defined)\nmore")
        == "compile_error: NameError(… is not defined)"
    )
    assert reason("syntax_error", "line 3: x") == reason("syntax_error", "line 14: x")
    assert reason("wrong_value", "y is nan, 1e-3") == "wrong_value: y is #"
    assert reason("wrong_value", "float32 is not int64") == "wrong_value: float32 is not int64"
    assert reason("correct", "") == "correct"


CANDIDATE = "@triton.jit\ndef kernel(): pass\n\n\nclass ModelNew: pass\n"


@pytest.mark.parametrize(
    "completion",
    [
        f"```python\n{CANDIDATE}```",
        f"é😀 first\n```python\nclass ModelNew: old\n```\n😀\n```python\n{CANDIDATE}```\nend 😀",
        f"<think>```python\n{CANDIDATE}```</think>\n```py\n{CANDIDATE}```",
        f"```python\n{CANDIDATE}```\nin PyTorch:\n```python\nclass ModelNew: plain\n```",
        "  ```python\n" + "".join(f"  {line}\n" for line in CANDIDATE.splitlines()) + "  ```",
        f"```python\n{CANDIDATE}```".replace("\n", "\r\n"),
        "a draft\n```python\nclass ModelNew(\n```",
        "```python\nx = 1\n```",
        "",
    ],
)
def test_the_candidate_is_the_one_that_was_judged(completion):
    found = samples.candidate_of(completion, "wrong_value")
    assert found == extract_candidate(completion)
    assert samples.candidate_of(completion, "no_code") is None
    if found is not None:
        place = samples.place_in(completion, found)
        units = completion.encode("utf-16-le")  # as JavaScript counts
        shown = place if isinstance(place, str) else units[2 * place[0] : 2 * place[1]].decode("utf-16-le")
        assert shown.strip() == found.strip()


def test_tasks_of_one_name_with_unlike_sources_are_two(tmp_path):
    """Seeds draw tasks of their own, and may name them alike."""
    for seed, source in ((0, "x = 0"), (1, "x = 1"), (2, "x = 0")):
        row = sample(1, 3, 0, "correct", 1, task_source=source)
        write_run(tmp_path / f"s{seed}", metrics(1), [row, row | {"step": 2}], seed=seed)
    browse.main([str(tmp_path), "--out", str(tmp_path / "page.html")])
    index, chunks = read_page(tmp_path / "page.html")
    assert index["samples"]["tasks"] == ["task-3", "task-3 (2)"]
    assert [row["task_source"] for row in rows_of(index, chunks)] == ["x = 0"] * 2 + ["x = 1"] * 2 + [
        "x = 0"
    ] * 2


def test_a_row_says_which_group_it_was_compared_in():
    """Two prompts of one step may be the same task: then the task does not tell the group."""
    row = Episode(Task("t", "source"), [1], [2], [0.0], "stop", group=5).row(1, "train")
    assert row["group"] == 5


# ---- the page


def test_the_page_asks_for_nothing_and_holds_nothing_of_a_sample_as_html(tmp_path):
    hostile = sample(1, 0, 0, "wrong_value", 1, completion="</script><img src=x>", task="<b>{{data}}")
    folder = write_run(tmp_path / "<i>", metrics(2), [hostile])
    browse.main([str(folder)])
    text = (folder / "browse.html").read_text()
    assert "<img" not in text and "<b>" not in text and "<i>" not in text
    assert not re.search(
        r"""(src|href)\s*=\s*["']?+(?!data:)|https?://(?!www\.w3\.org/2000/svg)|\bimport\(|fetch\(""", text
    )
    assert "default-src 'none'" in text
    assert rows_of(*read_page(folder / "browse.html")) == [hostile]


def test_every_status_has_a_colour_of_its_own():
    colors = dict(re.findall(r'(\w+): "(#\w{6})"', page.web("status.js")))
    assert set(colors) == STATUSES and len(set(colors.values())) == len(STATUSES)


def test_every_file_of_the_page_is_in_it(tmp_path):
    folder = write_run(tmp_path / "a", metrics(1))
    browse.main([str(folder)])
    text = (folder / "browse.html").read_text()
    files = {file.name for file in (Path(page.__file__).parent / "web").iterdir()}
    scripts, styles = (
        {f"{name}.{kind}" for name in of} for kind, of in (("js", page.SCRIPTS), ("css", page.STYLES))
    )
    assert files == scripts | styles | {"page.html"}
    assert all(page.web(name).strip() in text for name in files if not name.endswith(".html"))


def test_the_page_reads_rows_that_the_log_writes(tmp_path):
    trace = log.Log(tmp_path / "a")
    trace.step("grpo", 1, 2, {"sample": 0.1}, (), reward=0.5, statuses={"correct": 1})
    row = Episode(Task("t", "source"), [1], [2], [0.0], "stop", completion="x").row(1, "train")
    trace.samples([row, row])
    browse.main([str(tmp_path / "a")])
    assert rows_of(*read_page(tmp_path / "a" / "browse.html")) == [row | {"count": 2}]


# ---- mistakes


@pytest.mark.parametrize(
    "argv, said",
    [
        (["{}/none"], "none: no run is there; a folder with metrics.jsonl"),
        (["{}/run", "--rows", "0"], "--rows 0: a number over 0 is expected"),
        (["{}/run", "--rows", "x"], "--rows: invalid int value: 'x'"),
        (["{}/run", "--out", "{}"], "a file is expected, this is a folder"),
        (["{}/broken"], "broken/samples.jsonl:2: a JSON object a line is expected"),
        (["{}/foreign"], "foreign/samples.jsonl:1: no sample: its field 'task' is missing"),
        ([], "the following arguments are required: RUN"),
    ],
)
def test_a_mistake_is_answered_in_one_line(tmp_path, capsys, argv, said):
    write_run(tmp_path / "run", metrics(1))
    write_run(tmp_path / "broken", metrics(1), many_samples(1))
    write_run(tmp_path / "foreign", metrics(1), [{"completion": "x"}])
    with open(tmp_path / "broken" / "samples.jsonl", "a") as file:
        file.write("[1]\n")
    with pytest.raises(SystemExit) as stopped:
        browse.main([word.format(tmp_path) for word in argv])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and said in error and error.count("\n") == 1
