"""Checkpoints that a run continues from exactly, on the same or another number of ranks.

    folder/step-00000120/            complete: it was renamed to this when all was on the disk
        state.json                   step, the optimizer's settings, the caller's own state (data cursor, file positions ...)
        rank-000-of-002.safetensors  this rank's rows of every parameter and of both moments
        rank-000-of-002.json         its random states: Python, NumPy, torch, CUDA
    folder/step-00000140.tmp/        being written; a kill here loses this one only
    folder/best                      the name of the best one, which is never deleted

Each rank writes what it holds, so nothing is gathered. Rows are cut along the first dimension in rank order,
so any number of ranks can read what another number wrote.
"""  # noqa: E501

import json
import os
import random
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from nanotriton.parallel.world import World
from nanotriton.transformer.tensor_files import shard_rows, write_bytes, write_tensors


class CheckpointError(RuntimeError):
    """A checkpoint that could not be written or read. The message is one line, fit for a user."""


def rank_name(rank: int, ranks: int) -> str:
    """How the names of a rank's files begin."""
    return f"rank-{rank:03d}-of-{ranks:03d}"


def attempt(work: Callable[[], None]) -> str | None:
    """Do it -> what the system said if it couldn't."""
    try:
        work()
    except OSError as error:
        return error.strerror or str(error)
    return None


class Writer(threading.Thread):
    """`work` in a thread (start) or here (run); `trouble` says if it failed."""

    trouble: str | None = None

    def __init__(self, work: Callable[[], None]):
        super().__init__()
        self.work = work

    def run(self) -> None:
        self.trouble = attempt(self.work)


@dataclass
class Pending:
    """A checkpoint that is being written, and is not the newest yet."""

    writer: Writer
    temporary: Path  # the folder that it is written to
    final: Path  # the folder that it becomes
    best: bool


class Checkpointer:
    """Saves to and loads from `folder`, which every rank of `world` sees. Keeps the last `keep` and the best.

    All methods are collective: every rank calls them, in the same order.
    """

    def __init__(self, folder: str | Path, world: World, keep: int = 2):
        self.folder = Path(folder)
        self.world = world
        self.keep = keep
        self.files = rank_name(world.rank, world.world_size)
        self.pending: Pending | None = None

    def save(
        self,
        step: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        state: dict[str, Any],
        best: bool = False,
        background: bool = False,
    ) -> None:
        """Write everything and only then make it the newest.

        `state` is the caller's, of JSON types, the same on every rank.

        With background=True this returns when all is copied to host memory; a thread writes it, and
        finish() makes it the newest. Raises CheckpointError on every rank if any can't write (a full
        disk); the previous checkpoints are untouched.
        """
        self.finish()
        final = self.folder / f"step-{step:08d}"
        temporary = final.with_suffix(".tmp")
        self._agree(attempt(lambda: self._clear(temporary)))
        named = {n: x.to("cpu", copy=True) if background else x for n, x in tensors(model, optimizer)}
        texts = {f"{self.files}.json": json.dumps(random_states())}
        if self.world.is_main:
            groups = [dict(group) for group in optimizer.param_groups]
            for group in groups:
                del group["params"]
            row = {"step": step, "ranks": self.world.world_size, "optimizer": groups, "state": state}
            texts["state.json"] = json.dumps(row, indent=1)
        writer = Writer(lambda: self._write(temporary, named, texts))
        self.pending = Pending(writer, temporary, final, best)
        if background:
            writer.start()
        else:
            writer.run()
            self.finish()

    def finish(self, wait: bool = True) -> None:
        """Make the checkpoint that is being written the newest.

        With wait=False only if every rank has written it.
        """
        pending = self.pending
        if pending is None:
            return
        if not wait and any(self.world.gather(pending.writer.is_alive())):
            return
        if pending.writer.is_alive():
            pending.writer.join()
        self.pending = None
        self._agree(pending.writer.trouble, cleanup=pending.temporary)
        self._agree(attempt(lambda: self._commit(pending.temporary, pending.final, pending.best)))

    def _clear(self, temporary: Path) -> None:
        if self.world.is_main:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)

    def _write(self, folder: Path, named: dict[str, Tensor], texts: dict[str, str]) -> None:
        write_tensors(folder / f"{self.files}.safetensors", named)
        for name, text in texts.items():
            write_bytes(folder / name, text.encode())

    def _commit(self, temporary: Path, final: Path, best: bool) -> None:
        if not self.world.is_main:
            return
        sync_folder(temporary)
        if final.exists():  # this step was saved before, by a run that was then set back: make way
            final.rename(final.with_suffix(".old.tmp"))
        temporary.rename(final)
        sync_folder(self.folder)
        if best:
            write_bytes(self.folder / "best.tmp", final.name.encode())
            (self.folder / "best.tmp").rename(self.folder / "best")
        named = (self.folder / "best").read_text() if (self.folder / "best").exists() else None
        for old in self.steps()[: -self.keep]:
            if old.name != named:
                remove(old)
        for left in self.folder.glob("step-*.tmp"):
            shutil.rmtree(left)

    def _agree(self, trouble: str | None, cleanup: Path | None = None) -> None:
        """If something failed on one rank, fail on all with its line."""
        if trouble and self.world.world_size > 1:
            trouble = f"rank {self.world.rank} ({socket.gethostname()}): {trouble}"
        troubles = [line for line in self.world.gather(trouble) if line]
        if not troubles:
            return
        if cleanup and self.world.is_main:
            shutil.rmtree(cleanup, ignore_errors=True)
        raise CheckpointError(
            f"checkpoint not written, the previous one is whole: {self.folder}: {troubles[0]}"
        )

    def steps(self) -> list[Path]:
        """The complete checkpoints, oldest first."""
        return sorted(p for p in self.folder.glob("step-*") if p.suffix != ".tmp")

    def load_latest(
        self, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[int, dict[str, Any]] | None:
        """Restore the newest checkpoint -> (step, the caller's state), or None where there is none."""
        self.finish()
        self.world.barrier()
        found = self.steps()
        return self.load(found[-1], model, optimizer) if found else None

    def load(
        self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[int, dict[str, Any]]:
        """Parameters, moments and settings of the optimizer, random states.

        Raises CheckpointError if it doesn't fit.

        With another number of ranks each takes the random states of one of the old ones; nothing that
        matters is drawn from them (samples have seeds of their own).
        """
        try:
            row = json.loads((folder / "state.json").read_text())
            names = [rank_name(rank, row["ranks"]) for rank in range(row["ranks"])]
            with ExitStack() as stack:
                files = []
                for name in names:
                    files.append(stack.enter_context(safe_open(folder / f"{name}.safetensors", "pt")))
                fill(model, optimizer, files)
            twin = names[self.world.rank % len(names)]
            states = json.loads((folder / f"{twin}.json").read_text())
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise CheckpointError(
                f"{folder} can't be read ({error}); delete it to continue from the one before"
            ) from None
        for group, saved in zip(optimizer.param_groups, row["optimizer"]):
            group.update({k: tuple(v) if isinstance(v, list) else v for k, v in saved.items()})
        set_random_states(states)
        return row["step"], row["state"]


# ---- parameters and moments by name
def tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """(name, this rank's part) of every parameter that is trained, and of what the optimizer keeps for it."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # after a forward without a backward the parameters are gathered, and bf16
    for name, p in trained(model).items():
        yield f"model.{name}", local(p)
        for key, value in optimizer.state.get(p, {}).items():
            yield f"{key}.{name}", local(value)


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that a checkpoint holds. The others are those of the folder that the run began from."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def local(x: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    return (x.to_local() if isinstance(x, DTensor) else x).detach()


@torch.no_grad()
def fill(model: nn.Module, optimizer: torch.optim.Optimizer, files: list[Any]) -> None:
    """Copy from the files of all the ranks that wrote into what this rank holds."""
    saved = set(files[0].keys())
    names = trained(model)
    if missing := {f"model.{n}" for n in names} ^ {s for s in saved if s.startswith("model.")}:
        raise ValueError(f"parameters differ, first {min(missing)}")
    optimizer.state.clear()
    group_of = {p: group for group in optimizer.param_groups for p in group["params"]}
    for name, p in names.items():
        copy_rows(p, f"model.{name}", files)
        keys = []  # what the optimizer keeps for this parameter
        for tensor in saved:
            key, of = tensor.split(".", 1)
            if of == name and key != "model":
                keys.append(key)
        empty = optimizer.empty_state(p) if keys and hasattr(optimizer, "empty_state") else {}
        for key in keys:
            if key == "step":  # a scalar, the same on every rank; the fused kernel wants it on the device
                device = p.device if group_of[p].get("fused") else "cpu"
                optimizer.state[p]["step"] = files[0].get_tensor(f"step.{name}").to(device)
            else:
                optimizer.state[p][key] = empty[key] if empty else torch.zeros_like(p)
                copy_rows(optimizer.state[p][key], f"{key}.{name}", files)


def copy_rows(x: Tensor, name: str, files: list[Any]) -> None:
    """Fill x, or this rank's rows of it, from the rows that the files hold, one file after the other."""
    mine, start = local(x), 0
    if isinstance(x, DTensor):
        start, _ = shard_rows(x.shape[0], x.device_mesh.get_local_rank(), x.device_mesh.size())
    at = 0  # the row at which a file's part begins
    for file in files:
        part = file.get_slice(name)
        height = part.get_shape()[0]
        a, b = max(start, at), min(start + len(mine), at + height)
        if a < b:
            mine[a - start : b - start].copy_(part[a - at : b - at])
        at += height
    if at != x.shape[0]:
        raise ValueError(f"{name} has {at} rows and not {x.shape[0]}")


# ---- files
def sync_folder(path: Path) -> None:
    """A rename or a new file is on the disk only when its folder is."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def remove(folder: Path) -> None:
    """Renamed first: a kill halfway must not leave half a checkpoint under a good name."""
    shutil.rmtree(folder.rename(folder.with_suffix(".old.tmp")))


# ---- random states
def random_states() -> dict[str, Any]:
    """The states of Python's, NumPy's, torch's and this process's CUDA generator, as JSON types."""
    kind, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [kind, keys.tolist(), *rest],
        "torch": torch.get_rng_state().tolist(),
        "cuda": torch.cuda.get_rng_state().tolist() if torch.cuda.is_available() else None,
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Put the generators where random_states() found them."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(torch.tensor(states["torch"], dtype=torch.uint8))
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.tensor(states["cuda"], dtype=torch.uint8))
