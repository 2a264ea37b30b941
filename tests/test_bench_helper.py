"""Helpers: processes that answer, die, hang, and are started again."""

import pytest

from bench.channels.helper import Helper, ask_all

HELPER = """
import os, time
from bench.channels.helper import serve

def answer(request):
    print("noise")
    if request["do"] == "die":
        os._exit(7)
    if request["do"] == "hang":
        time.sleep(60)
    if request["do"] == "CUDA error":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    return {"pid": os.getpid(), "root": 1 / request["by"]}

serve(answer)
"""


@pytest.fixture
def own_helper(tmp_path, monkeypatch):
    (tmp_path / "own_helper.py").write_text(HELPER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "own_helper"


def test_a_helper_outlives_what_it_is_asked(own_helper):
    with Helper(own_helper, seconds=5) as helper:
        first = helper.ask({"do": "say", "by": 2})
        assert first["root"] == 0.5
        assert helper.ask({"do": "say", "by": 0}) == {"error": "ZeroDivisionError: division by zero"}
        assert helper.ask({"do": "say", "by": 1})["pid"] == first["pid"]
        assert helper.ask({"do": "die", "by": 1}) == {"error": "its process died (exit status 7)"}
        assert helper.ask({"do": "say", "by": 1})["pid"] != first["pid"]
        helper.seconds = 0.2
        assert helper.ask({"do": "hang", "by": 1}) == {"error": "not done after 0.2 s"}


def test_several_helpers_answer_as_they_are_ready(own_helper):
    requests = {f"say {by}": {"do": "say", "by": by} for by in (1, 2, 4, 5)}
    requests |= {"die": {"do": "die", "by": 1}, "lost": {"do": "CUDA error", "by": 1}}
    found = dict(ask_all(own_helper, 5.0, requests, 2))
    assert found.pop("die") == {"error": "its process died (exit status 7)"}
    assert "CUDA error" in found.pop("lost")["error"]
    assert {name: answer["root"] for name, answer in found.items()} == {
        f"say {n}": 1 / n for n in (1, 2, 4, 5)
    }
    assert len({answer["pid"] for answer in found.values()}) > 1
    assert list(ask_all(own_helper, 5.0, {}, 2)) == []


def test_a_helper_that_hangs_holds_up_no_other(own_helper):
    requests = {"hang": {"do": "hang", "by": 1}, "say": {"do": "say", "by": 1}}
    found = list(ask_all(own_helper, 1.0, requests, 2))
    assert [name for name, _ in found] == ["say", "hang"]
    assert found[1][1] == {"error": "not done after 1 s"}


def test_a_helper_whose_context_is_lost_is_started_again(own_helper):
    with Helper(own_helper, seconds=5) as helper:
        first = helper.ask({"do": "say", "by": 1})["pid"]
        assert "CUDA error" in helper.ask({"do": "CUDA error", "by": 1})["error"]
        assert helper.ask({"do": "say", "by": 1})["pid"] != first
