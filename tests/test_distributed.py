"""Ranks, microbatches and checkpoints on the CPU. This file is also the program that torchrun starts (see the end).

One rank is this process; two ranks are torchrun's, with gloo. Every run trains the same tiny model on the same eight
sequences, so all must have the same gradients, whatever their ranks and microbatches.
"""

import doctest
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import torch

import train_grpo
from nanotriton import heldout as heldout_module
from nanotriton.config import ConfigError
from nanotriton.heldout import heldout
from nanotriton.kernels.logprob import token_logprobs
from nanotriton.parallel import distributed
from nanotriton.parallel.checkpoint import Checkpointer, CheckpointError
from nanotriton.parallel.program import launch
from nanotriton.parallel.world import World, idle_cores, setup
from nanotriton.reward.audit import read_samples
from nanotriton.rollout import Episode
from nanotriton.runs.run import Run
from nanotriton.tasks.task import Task
from nanotriton.transformer.attention import packed
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig
from nanotriton.verdict import Verdict
from tests.ports import free_port

ROOT = Path(__file__).parent.parent
LENGTHS = [9, 4, 12, 7, 3, 11, 6, 5]


# ---- a run
# -----------------------------------------------------------------------------------------------------------
def make(world, reshard=False, checkpoint_layers=0, defer=False):
    config = ModelConfig("qwen3", 48, 32, 48, 3, 4, 2, tie_word_embeddings=False, qk_norm=True)
    model = Transformer(config).init_weights(seed=1)
    model.checkpoint_layers = checkpoint_layers
    distributed.shard(model, world, reshard, defer)
    return model, distributed.adamw(model, 1e-3, weight_decay=0.1)


def backward(model, world, max_tokens):
    """Gradients of the global token mean of -logp -> the loss over all ranks."""
    g = torch.Generator().manual_seed(3)
    data = [torch.randint(0, 48, (n + 1,), generator=g) for n in LENGTHS]
    mine = world.share(data)
    total = torch.zeros(())
    for part in distributed.accumulate(
        model, distributed.balance([len(x) - 1 for x in mine], max_tokens, world)
    ):
        seqs = [mine[i] for i in part] or [torch.zeros(2, dtype=torch.long)]
        ids, targets = torch.cat([x[:-1] for x in seqs]), torch.cat([x[1:] for x in seqs])
        positions = torch.cat([torch.arange(len(x) - 1) for x in seqs])
        cu = torch.tensor([0] + [len(x) - 1 for x in seqs]).cumsum(0).int()
        attend = packed(cu, max(len(x) - 1 for x in seqs))
        logp, _ = model(ids, positions, attend, head=lambda h, w, t=targets: token_logprobs(h, w, t))
        loss = -logp.sum() / sum(LENGTHS) * bool(part)
        loss.backward()
        total += loss.detach()
    return world.all_sum(total).item()


def whole(x):
    return x.full_tensor() if isinstance(x, distributed.DTensor) else x


def grads(model):
    return {n: whole(p.grad).clone() for n, p in model.named_parameters()}


def train(world, steps, folder=None, max_tokens=24, die_at=None, start=0):
    """`steps` steps, from the newest checkpoint of `folder`, saved after each -> the losses of this run's own steps."""
    model, optimizer = make(world)
    saver = Checkpointer(folder, world) if folder else None
    step, state = (saver and saver.load_latest(model, optimizer)) or (start, {"losses": []})
    losses = state["losses"]
    for now in range(step, steps):
        losses.append(backward(model, world, max_tokens))
        distributed.clip_grad_norm(model, 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if now == die_at and world.rank == 1 and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if saver:
            saver.save(now + 1, model, optimizer, {"losses": losses})
    return model, optimizer, losses


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_training_has_a_second_core_where_there_is_one(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(2))
    for world, ranks, threads in (
        (World(), "1", 2),
        (World(), "2", 1),
        (World(device=torch.device("cuda")), "1", 1),
    ):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        with idle_cores(world):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 1


@pytest.fixture(scope="module")
def reference():
    model, _ = make(World())
    loss = backward(model, World(), 10_000)
    return loss, grads(model)


def same(a, b, tolerance=1e-6):
    """Equal to `tolerance` relative to each tensor's largest entry."""
    assert a.keys() == b.keys()
    for name in a:
        assert b[name].abs().max() > 0
        assert (a[name] - b[name]).abs().max() <= tolerance * b[name].abs().max(), name


def torchrun(*words, nodes=None, timeout=150):
    """Start this file under torchrun; with `nodes`, as that many agents on the loopback, one process each."""
    base = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "1"]
    layout = ["--standalone", "--nproc-per-node", "2"]
    if nodes:
        layout = [
            "--nnodes",
            str(nodes),
            "--nproc-per-node",
            "1",
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"localhost:{free_port()}",
        ]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    agents = [
        subprocess.Popen(
            [*base, *layout, __file__, *map(str, words)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(nodes or 1)
    ]
    try:
        outputs = [agent.communicate(timeout=timeout)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    failed = [output for agent, output in zip(agents, outputs, strict=True) if agent.returncode]
    # the agent that holds the rendezvous may be gone when another asks it for the last time: torchrun's own
    # race, after all work is done
    wrong = [
        output for output in failed if len(failed) == len(agents) or "RendezvousConnectionError" not in output
    ]
    assert not wrong, "\n".join(wrong)[-4000:]


# ---- the number of microbatches and of ranks changes nothing
# ---------------------------------------------------------
@pytest.mark.parametrize("max_tokens", [1, 15, 30, 10_000])
@pytest.mark.parametrize("checkpoint_layers", [0, 2, 3])
def test_gradients_do_not_depend_on_the_microbatches(reference, max_tokens, checkpoint_layers):
    model, _ = make(World(), checkpoint_layers=checkpoint_layers)
    assert backward(model, World(), max_tokens) == pytest.approx(reference[0], rel=1e-6)
    same(grads(model), reference[1])


@pytest.fixture(scope="module")
def two(reference, tmp_path_factory):
    """torchrun with two processes ran two_ranks() -> the folder where its run is."""
    folder = tmp_path_factory.mktemp("two_ranks")
    torch.save(reference, folder / "reference.pt")
    torchrun("two_ranks", folder)
    return folder


def test_two_ranks_have_the_gradients_of_one(two):
    assert (two / "agreed").exists()


def two_ranks(folder):
    world = setup()
    assert (world.world_size, world.is_main, world.dtype) == (2, world.rank == 0, torch.float32)
    loss, expected = torch.load(folder / "reference.pt")
    ways = (
        (1, False, False, False),
        (10_000, False, False, True),
        (15, True, False, False),
        (15, True, True, True),
        (15, False, True, True),
        (1, False, False, True),
    )
    for max_tokens, *options in ways:
        model, _ = make(world, *options)
        assert all(
            isinstance(p, distributed.DTensor) and p.dtype == torch.float32 for p in model.parameters()
        )
        assert abs(backward(model, world, max_tokens) - loss) < 1e-6 * loss
        same(grads(model), expected)
    norm = distributed.clip_grad_norm(model, 0.01)
    truth = torch.stack([g.norm() for g in expected.values()]).norm()
    assert abs(norm - truth) < 1e-5 * truth
    assert abs(distributed.clip_grad_norm(model, 1.0) - 0.01) < 1e-5

    # a forward alone leaves the layers gathered; what is read then must be the masters all the same
    with torch.no_grad():
        model(torch.arange(4), torch.arange(4), packed(torch.tensor([0, 4], dtype=torch.int32), 4))
    alone, _ = make(World())
    gathered = dict(distributed.full_params(model))
    assert gathered.keys() == dict(alone.named_parameters()).keys()
    assert all(torch.equal(gathered[n], p) for n, p in alone.named_parameters())
    assert all(x.dtype == torch.bfloat16 for _, x in distributed.full_params(model, torch.bfloat16))

    digest = distributed.check_same(gathered.items(), world)
    assert world.gather(digest) == [digest] * 2
    gathered["model.norm.weight"][3] += world.rank * 1e-6
    try:
        distributed.check_same(gathered.items(), world)
    except RuntimeError as error:
        assert "first model.norm.weight (1 in all)" in str(error)
    else:
        raise AssertionError("a difference between ranks was not noticed")

    x = torch.tensor([world.rank + 1.0], dtype=torch.float64)
    assert (world.all_sum(x), world.all_max(x), x.item()) == (3.0, 2.0, world.rank + 1.0)
    assert world.share(list("abcde")) == (list("ace") if world.rank == 0 else list("bd"))
    assert len(distributed.balance([8] * (1 + 3 * world.rank), 8, world)) == 4

    train(world, 2, folder / "run")
    samples_of_all_ranks(folder, world)
    full_disk(folder, world)
    (folder / "agreed").touch()


def full_disk(folder, world):
    """One rank of two can't write: both say so, and the checkpoint before stays."""
    model, optimizer, _ = train(world, 1, folder / "disk")
    saver = Checkpointer(folder / "disk", world)
    if world.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    try:
        saver.save(2, model, optimizer, {})
    except CheckpointError as error:
        assert "the previous one is whole" in str(error) and "\n" not in str(error)
        assert f": rank 1 ({socket.gethostname()}): File too large" in str(error)
    else:
        raise AssertionError("a checkpoint that can't be written was not noticed")
    world.barrier()
    assert [p.name for p in (folder / "disk").iterdir()] == ["step-00000001"]
    assert saver.load_latest(model, optimizer)[0] == 1


# rank 0 has t0, t2 and t4, whose candidates are right; rank 1 the others
TASKS = [Task(f"t{i}", f"source {i}") for i in range(5)]


def judged(tasks, n, *_, **__):
    """What rollout() would return: n samples of each task, told apart by their text."""
    status = lambda task: "correct" if int(task.name[1:]) % 2 == 0 else "wrong_value"
    text = "```python\nclass ModelNew: {}\n```"
    return [
        [
            Episode(
                t, [1], [2], [-1.0], "stop", completion=text.format(i), verdict=Verdict(status(t)), reward=1.0
            )
            for i in range(n)
        ]
        for t in tasks
    ]


def samples_of_all_ranks(folder, world):
    """Files, statuses and the audit hold the samples of both ranks, and a resumed run cuts them back to its checkpoint."""
    heldout_module.rollout = judged
    model, optimizer = make(world)
    file = folder / "samples" / "samples.jsonl"

    def start():
        run = Run(train_grpo.Config(name="samples", out=str(folder)), world, "grpo")
        run.plot = lambda: None
        return run, run.resume(model, optimizer)

    def measure(run, step):
        numbers = heldout(
            run,
            TASKS,
            step=step,
            split="test",
            sampler=None,
            executor=None,
            tokenizer=None,
            max_tokens=1,
            seed=0,
        )
        run.evaluated("test", step, 2, **numbers)
        assert numbers["statuses"] == {"correct": 6, "wrong_value": 4}
        assert (numbers["success"], numbers["success_n"], numbers["greedy"], numbers["greedy_n"]) == (
            0.6,
            10,
            0.6,
            5,
        )

    def train_step(run, step):
        episodes = chain(*judged(world.share(TASKS), 3))
        run.samples(e.row(step, "train") for e in episodes)
        run.step("grpo", step, 2, {}, ())

    def splits():
        world.barrier()
        return [
            f"{row['split']} {row['step']}"
            for row in map(json.loads, file.read_text().splitlines())
            for _ in range(row["count"])
        ]

    measured = ["test/success 0"] * 10 + ["test/greedy 0"] * 5
    run, step = start()
    measure(run, step)
    run, step = start()  # killed before its first checkpoint: the measurement stays
    assert step == 0 and run.found("test", 0)["success_n"] == 10 and splits() == measured
    train_step(run, 1)
    run.end_step(1, model, optimizer, due=True)
    train_step(run, 2)
    assert splits() == measured + ["train 1"] * 15 + ["train 2"] * 15
    run, step = start()
    assert step == 1 and splits() == measured + ["train 1"] * 15
    rewarded = [(s.task.name, s.count) for s in read_samples(folder / "samples", "train")]
    assert sorted(rewarded) == [(f"t{i}", 1) for i in range(5) for _ in range(3)]


@pytest.mark.slow
def test_two_ranks_then_one_then_two_with_one_killed(two):
    """The same run on 2 ranks, then 1, then 2 "machines", one of whose workers is killed once, has the losses of a straight one."""
    run = two / "run"
    _, _, straight = train(World(), 6)
    _, _, one = train(World(), 4, run)
    torchrun("resume", run, 6, 4, nodes=2)
    assert (run / "died").exists()
    newest = Checkpointer(run, World()).steps()[-1]
    losses = json.loads((newest / "state.json").read_text())["state"]["losses"]
    assert losses[:4] == one and losses == pytest.approx(straight, rel=1e-5)
    assert len(set(losses)) == 6 and sorted(p.name for p in newest.iterdir())[0] == "rank-000-of-002.json"


def resume(folder, steps, die_at="-1"):
    train(setup(), int(steps), folder, die_at=int(die_at))


# ---- the rest
# --------------------------------------------------------------------------------------------------------
class Pretend(World):
    """A rank beside another that needs `other` microbatches."""

    other = 5

    def all_max(self, x):
        return torch.maximum(x, torch.tensor(self.other))


@pytest.mark.parametrize("seed", range(5))
def test_microbatches_hold_every_sequence_once_and_are_even(seed):
    rng = random.Random(seed)
    lengths = [rng.randint(1, 100) for _ in range(rng.randint(1, 60))]
    parts = distributed.balance(lengths, 128)
    assert sorted(i for p in parts for i in p) == list(range(len(lengths)))
    loads = [sum(lengths[i] for i in p) for p in parts]
    assert max(loads) <= 128 and len(parts) <= -(-sum(lengths) // 128) + 2
    assert max(loads) - min(loads) <= max(lengths)
    assert len(distributed.balance(lengths[:2], 10_000, Pretend())) == 5


def test_microbatches_at_the_edges():
    assert doctest.testmod(distributed) == doctest.testmod(sys.modules[World.__module__]) == (0, 1)
    assert distributed.balance([], 8) == [[]]
    assert sorted(distributed.balance([100, 3, 100], 8)) == [[0], [1], [2]]  # longer than a microbatch: alone
    assert distributed.balance([4], 8, Pretend()) == [[0], [], [], [], []]


def test_a_plain_python_process_is_one_rank(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    world = setup()
    assert (world.rank, world.world_size, world.is_main) == (0, 1, True)
    assert world.gather("x") == ["x"] and world.all_sum(torch.ones(2)).tolist() == [1, 1]
    world.barrier()


@pytest.mark.parametrize(
    "error,code,said",
    [(ConfigError("--lr: no"), 2, "error: --lr: no\n"), (CheckpointError("disk"), 1, "error: disk\n")],
)
def test_launch_turns_a_users_mistake_into_one_line(capsys, error, code, said):
    def main(cfg, world):
        assert (cfg, world.world_size) == ("cfg", 1)
        raise error

    with pytest.raises(SystemExit) as stop:
        launch(main, "cfg")
    assert stop.value.code == code and capsys.readouterr().err == said
    with pytest.raises(ZeroDivisionError):  # ours and not the user's: the traceback is wanted
        launch(lambda cfg, world: 1 / 0, None)


def test_decay_is_for_matrices_and_the_rate_for_all():
    model, _ = make(World())
    optimizer = distributed.adamw(model, 1e-3, weight_decay=0.1)
    assert {(p.ndim, g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]} == {
        (2, 0.1),
        (1, 0.0),
    }
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(model.parameters()))
    distributed.set_lr(optimizer, 5e-5)
    assert [g["lr"] for g in optimizer.param_groups] == [5e-5] * 2


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, folder, *rest = sys.argv[1:]
    {"two_ranks": two_ranks, "resume": resume}[what](Path(folder), *rest)
    torch.distributed.destroy_process_group()


def test_what_is_kept_and_what_is_made_again():
    """Plans for an 8B and a 0.6B on cards of 85 and 150 GB."""
    big = ModelConfig("qwen3", 151936, 4096, 12288, 36, 32, 8, head_dim=128, qk_norm=True)
    small = ModelConfig(
        "qwen3", 151936, 1024, 3072, 28, 16, 8, head_dim=128, qk_norm=True, tie_word_embeddings=True
    )
    one, four = World(), World(world_size=4)

    def plan(config, world, optimizer, tokens, copies, memory=85e9):
        """What saves or spends memory: (gather for every pass, layers to recompute, defer, keep logits)."""
        return tuple(distributed.memory_plan(config, world, optimizer, tokens, copies, memory=memory))

    assert plan(big, four, "adamw", 4096, 0) == (False, 0, False, False)
    assert plan(big, four, "adamw", 16384, 0) == (False, 32, True, False)
    assert plan(big, four, "adamw", 16384, 1) == (True, 32, True, False)
    assert plan(big, one, "adam8", 16384, 0) == (False, 30, False, False)
    assert plan(big, one, "adam8", 2048, 0) == (False, 0, False, True)
    assert plan(small, one, "adamw", 16384, 1) == (False, 0, False, True)
    assert plan(small, one, "adamw", 32768, 1) == (False, 0, False, False)
    assert plan(big, one, "adam8", 8192, 0, memory=150e9) == (False, 0, False, True)
    assert plan(big, one, "adam8", 16384, 0, memory=150e9) == (False, 4, False, False)
    assert plan(big, four, "adamw", 16384, 1, memory=150e9) == (False, 13, True, False)
    # the least that there is
    assert plan(big, four, "adamw", 16384, 1, memory=45e9) == (True, 36, False, False)
    # a CPU's memory is the host's affair
    assert distributed.memory_plan(big, four, "adamw", 10**6, 1) == (False, 0, False, False)
