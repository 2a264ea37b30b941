"""Checkpoints: exact resume, kill -9 at every instant, a full disk, what is kept, what can't be read. See also test_distributed."""

import os
import random
import resource
import signal
import sys
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_distributed import backward, make, one_thread  # noqa: F401

from nanotriton.parallel import checkpoint, distributed
from nanotriton.parallel.checkpoint import Checkpointer, CheckpointError
from nanotriton.parallel.world import World
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig


def noisy_train(model, optimizer, steps):
    """Steps that use every generator -> what each drew."""
    drawn = []
    for _ in range(steps):
        drawn.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
        backward(model, World(), 10_000)
        with torch.no_grad():
            model.head_weight.grad += torch.randn_like(model.head_weight.grad) * drawn[-1][0]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return drawn


def test_a_resumed_run_equals_a_straight_one_to_the_bit(tmp_path):
    model, optimizer = make(World())
    noisy_train(model, optimizer, 2)
    saver = Checkpointer(tmp_path, World())
    distributed.set_lr(optimizer, 7e-4)
    saver.save(2, model, optimizer, {"cursor": [1, 2], "name": "ü"})
    straight = noisy_train(model, optimizer, 3)

    other, fresh = make(World())
    noisy_train(other, fresh, 1)  # moments, parameters and generators that must all be overwritten
    assert saver.load_latest(other, fresh) == (2, {"cursor": [1, 2], "name": "ü"})
    assert fresh.param_groups[0]["lr"] == 7e-4
    assert noisy_train(other, fresh, 3) == straight
    for (name, a), b in zip(model.named_parameters(), other.parameters()):
        assert torch.equal(a, b), name
        for key, value in optimizer.state[a].items():
            assert torch.equal(value, fresh.state[b][key]), (name, key)


def test_no_checkpoint_and_one_before_the_first_step(tmp_path):
    model, optimizer = make(World())
    saver = Checkpointer(tmp_path / "new", World())
    assert saver.load_latest(model, optimizer) is None
    saver.save(0, model, optimizer, {})
    other, fresh = make(World())
    noisy_train(other, fresh, 1)
    assert saver.load_latest(other, fresh) == (0, {})
    assert not fresh.state and torch.equal(model.head_weight, other.head_weight)


def test_the_last_two_and_the_best_are_kept(tmp_path):
    model, optimizer = make(World())
    saver = Checkpointer(tmp_path, World(), keep=2)
    for step in range(1, 6):
        saver.save(step, model, optimizer, {}, best=step == 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "best",
        "step-00000002",
        "step-00000004",
        "step-00000005",
    ]
    saver.save(5, model, optimizer, {"again": True})
    assert saver.load_latest(model, optimizer) == (5, {"again": True})


def test_a_checkpoint_in_the_background_is_of_the_moment_it_was_asked_for(tmp_path, monkeypatch):
    model, optimizer = make(World())
    noisy_train(model, optimizer, 1)
    saver, may_write, write = Checkpointer(tmp_path, World()), threading.Event(), checkpoint.write_tensors
    monkeypatch.setattr(checkpoint, "write_tensors", lambda *args: (may_write.wait(), write(*args)))
    saver.save(1, model, optimizer, {"cursor": 1}, background=True)
    then = {n: p.detach().clone() for n, p in model.named_parameters()}
    noisy_train(model, optimizer, 1)  # goes on while it is written
    saver.finish(wait=False)
    assert not saver.steps()
    may_write.set()
    saver.save(2, model, optimizer, {}, background=True)  # waits for the first
    assert [p.name for p in saver.steps()] == ["step-00000001"]
    other, fresh = make(World())
    assert saver.load(saver.steps()[0], other, fresh) == (1, {"cursor": 1})
    assert all(torch.equal(p, then[n]) for n, p in other.named_parameters())
    assert saver.load_latest(other, fresh)[0] == 2 and torch.equal(other.head_weight, model.head_weight)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_tensors", fail)
    saver.save(3, model, optimizer, {}, background=True)
    with pytest.raises(CheckpointError, match="the previous one is whole"):
        saver.finish()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def in_a_fork(work):
    """work() in a forked child -> its exit code (negative: the signal)."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_killed_at_any_instant_of_a_save_a_whole_checkpoint_is_left(tmp_path):
    """kill -9 before the k-th operation on a file, for every k until a save gets through."""
    model, optimizer = make(World())
    saver = Checkpointer(tmp_path, World(), keep=1)
    saver.save(1, model, optimizer, {})
    noisy_train(model, optimizer, 1)
    weight = model.head_weight.detach().clone()
    step, killed = 2, 0

    def save_and_die(k):
        left = [k]

        def count():
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        sync = os.fsync
        os.fsync = lambda fd: (count(), sync(fd))
        watched = ("open", "os.rename", "os.rmdir", "os.remove", "os.mkdir")
        sys.addaudithook(
            lambda event, args: count() if event in watched and str(tmp_path) in str(args[0]) else None
        )
        saver.save(step, model, optimizer, {})

    for k in range(100):
        code = in_a_fork(lambda k=k: save_and_die(k))
        other, fresh = make(World())
        found, _ = saver.load_latest(other, fresh)
        assert found in (step - 1, step)
        assert torch.equal(other.head_weight, weight) == (found > 1)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        killed += 1
        step = found + 1
    assert code == 0 and killed >= 15
    # and nothing half-written stays behind
    assert [p.name for p in tmp_path.iterdir()] == [f"step-{step:08d}"]


def test_a_full_disk_is_one_line_and_leaves_the_checkpoint_before(tmp_path, capfd):
    model, optimizer = make(World())
    saver = Checkpointer(tmp_path, World())
    saver.save(1, model, optimizer, {})

    def on_a_full_disk():
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
        with pytest.raises(
            CheckpointError, match=r"not written, the previous one is whole.*: File too large"
        ):
            saver.save(2, model, optimizer, {})

    assert in_a_fork(on_a_full_disk) == 0, capfd.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]
    assert saver.load_latest(model, optimizer) == (1, {})


def test_a_checkpoint_that_does_not_fit_or_is_damaged_is_one_line(tmp_path):
    model, optimizer = make(World())
    saver = Checkpointer(tmp_path, World())
    saver.save(1, model, optimizer, {})
    small = Transformer(ModelConfig("llama", 48, 32, 48, 1, 4)).init_weights(0)
    with pytest.raises(CheckpointError, match="parameters differ, first model"):
        saver.load_latest(small, distributed.adamw(small, 1e-3))
    wide = Transformer(ModelConfig("qwen3", 50, 32, 48, 3, 4, 2, qk_norm=True)).init_weights(0)
    with pytest.raises(CheckpointError, match="has 48 rows and not 50"):
        saver.load_latest(wide, distributed.adamw(wide, 1e-3))
    file = next(tmp_path.glob("*/*.safetensors"))
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="delete it to continue from the one before") as error:
        saver.load_latest(model, optimizer)
    assert "\n" not in str(error.value)


def test_the_file_is_safetensors(tmp_path):
    named = {
        "a": torch.randn(3, 5),
        "b": torch.randn(4, 2).bfloat16().t(),
        "c": torch.tensor(7.0),
        "d": torch.zeros(0, 4),
    }
    checkpoint.write_tensors(tmp_path / "x.safetensors", named)
    read = load_file(tmp_path / "x.safetensors")
    assert read.keys() == named.keys() and all(torch.equal(read[k], named[k]) for k in named)
