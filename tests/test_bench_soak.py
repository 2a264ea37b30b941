"""The soak and the timing benchmark, small: their candidates are what they say, and their checks see what is wrong."""

import json
import os
import random
import subprocess
import sys
import threading
import time

import pytest

from bench.executor import soak, soak_watch
from bench.executor.soak_candidates import Candidate, attacks, mix
from bench.executor.timing import Renamed
from bench.executor.timing_kernels import cheating, kernels, sibling
from nanotriton.executor import Executor, Verdict
from nanotriton.executor.common import probe
from nanotriton.tasks.task import Task

pytestmark = pytest.mark.slow


def test_the_mix_has_its_shares_and_every_candidate_is_distinct():
    candidates = mix(200, 0, "cpu", "none")
    count = lambda kind: sum(c.kind == kind for c in candidates)
    assert len(candidates) == 200 == len({c.source for c in candidates})
    assert {count(kind) for kind in attacks("cpu")} == {10} and count("endless_kernel") == 2
    assert count("honest_right") == count("honest_wrong") == 49
    for candidate in candidates:
        compile(candidate.source, candidate.name, "exec")
    assert all(
        "rule_violation" in c.accepted
        for c in mix(200, 0, "cpu", "strict")
        if not c.kind.startswith("honest")
    )


def test_a_soak_on_the_cpu(tmp_path):
    """One of each attack, three of each kind of honest candidate, and kills: everyone has their own verdict, and nothing is left."""
    out = tmp_path / "soak.json"
    arguments = [
        "--candidates",
        "20",
        "--kill",
        "--kill-every",
        "2",
        "--timeout",
        "4",
        "--workers",
        "1",
        "--out",
        str(out),
    ]
    soak.main(arguments)
    found = json.loads(out.read_text())
    assert found["checks"] == dict.fromkeys(found["checks"], True), out.read_text()
    assert found["candidates"] == 20 and found["wrong_verdicts"] == []
    assert found["kinds"]["honest_right"]["statuses"] == {"correct": 5} and found["kinds"]["honest_wrong"][
        "statuses"
    ] == {"wrong_value": 4}
    assert found["kinds"]["exit_0"]["statuses"] == {"crashed": 1} and sum(found["kills"].values()) > 0
    assert found["longest"]["child_s"] > 3  # the soak itself checks the limit
    assert not any(found["left"].values())


def test_wrong_verdicts_and_missing_ones_are_told():
    task = Task(**probe.TASK)
    candidates = [Candidate(f"a-{i}", "a", task, "", frozenset({"correct"})) for i in range(3)]
    kinds, wrong = soak.table(candidates, [Verdict("correct"), Verdict("crashed", "run", "why"), None])
    assert kinds["a"]["candidates"] == 3 and dict(kinds["a"]["statuses"]) == {
        "correct": 1,
        "crashed": 1,
        "no verdict": 1,
    }
    assert [(w["candidate"], w["status"], w.get("message")) for w in wrong] == [
        ("a-1", "crashed", "why"),
        ("a-2", "no verdict", None),
    ]


def test_what_is_left_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(soak_watch, "PATIENCE", 0.2)
    machine = soak_watch.Machine("cpu")
    assert not any(machine.left(set(), str(tmp_path)).values())
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    )
    (tmp_path / "file").touch()
    shared, file = f"/dev/shm/nanotriton-test-{os.getpid()}", tmp_path / "open"
    with open(shared, "w"), open(file, "w"):
        left = machine.left({process.pid}, str(tmp_path))
    os.unlink(shared)
    process.communicate(b"\n")
    assert left["processes"] == [process.pid] and left["files"] == ["file", "open"]
    assert shared in left["shared_memory"] and left["descriptors"] >= 2


def test_the_watcher_sees_how_long_children_and_stages_take():
    source = probe.CANDIDATE.replace("        y = torch", "        while True: pass\n        y = torch")
    stop = threading.Event()
    with Executor(workers=1, timeout=2.0) as executor:
        watcher = soak_watch.Watcher(executor, stop)
        assert executor.submit(Task(**probe.TASK), source).result().status == "timeout"
        stop.set()
        watcher.join()
    assert watcher.child > 1.0 and len(watcher.groups) == 1


def test_the_watcher_leaves_out_what_a_process_waits_for_a_core(monkeypatch):
    """Here all processes seem to wait all the time, so none gets old, and no stage is late."""
    begun = time.monotonic()
    monkeypatch.setattr(soak_watch, "waited", lambda pid: time.monotonic() - begun)
    monkeypatch.setattr(soak_watch, "own_time", lambda pid: begun)
    source = probe.CANDIDATE.replace("        y = torch", "        while True: pass\n        y = torch")
    stop = threading.Event()
    with Executor(workers=1, timeout=2.0) as executor:
        watcher = soak_watch.Watcher(executor, stop)
        assert executor.submit(Task(**probe.TASK), source).result().status == "timeout"
        stop.set()
        watcher.join()
    assert watcher.child < 1.0 and watcher.overdue == 0.0 and watcher.parent_waited


def test_the_killer_finds_every_level():
    task = Task(**probe.TASK)
    with Executor(workers=1) as executor:
        killer = soak_watch.Killer.__new__(soak_watch.Killer)  # one that kills when it is told to
        killer.executor, killer.rng, killer.hit = executor, random.Random(0), set()
        for wanted in ("zygote", "worker", "base"):
            assert executor.submit(task, f"{probe.CANDIDATE}# {wanted}\n").result().correct
            alive = soak_watch.living(set(executor.supervisor.groups))
            before = {soak_watch.LEVELS[soak_watch.level(pid, alive)]: pid for pid in alive}
            assert sorted(before) == ["base", "worker", "zygote"] and killer.kill(wanted)
            assert executor.submit(task, f"{probe.CANDIDATE}# after {wanted}\n").result().correct
            assert before[wanted] not in soak_watch.living(set(executor.supervisor.groups))


def test_usage_errors_exit_2(capsys):
    with pytest.raises(SystemExit) as stop:
        soak.main(["--policy", "loose"])
    assert stop.value.code == 2 and "--policy loose" in capsys.readouterr().err


def test_the_clocks_candidates_are_right_on_a_cpu():
    """Everything of bench.executor.timing but the clock: kernels and cheats record, run and are judged; renamed ones are distinct."""
    renamed = Renamed()
    with Executor("cpu", "replay", policy="none", time=True, workers=1) as executor:
        wanted = {k.name: k for k in kernels("cpu")} | cheating("cpu") | {"honest": sibling("cpu")}
        sources = {name: renamed(k.source) for name, k in wanted.items()}
        futures = {name: executor.submit(k.task, sources[name]) for name, k in wanted.items()}
        statuses = {name: future.result().status for name, future in futures.items()}
    assert len(set(sources.values())) == len(sources)
    assert statuses.pop("another stream") == "rule_violation"  # forward ends before its work is waited for
    # its second call gets other values at the same addresses
    assert statuses.pop("cache by pointer") == "wrong_value"
    assert statuses.pop("first calls, counted in Python") == "wrong_value"  # it counts a further call too
    # In a further call unwritten memory holds numbers, which may look like poison or not; and a tensor may be at
    # the address of one that is gone.
    chance = ("skips where the output is not poison", "skips where its first number is not poison")
    for name in (*chance, "cache by object"):
        assert statuses.pop(name) in ("correct", "wrong_value")
    assert set(statuses.values()) == {"correct"}
