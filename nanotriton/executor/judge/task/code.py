"""A task's own code in the judge's process: its module, and the ways in which it is run."""

import contextlib
from collections.abc import Iterator
from functools import partial

import torch

from nanotriton.executor.gpu import driver
from nanotriton.executor.judge.task.asserts import Asserts
from nanotriton.executor.judge.task.module import (
    Allowance,
    ContextLost,
    arguments,
    check_arguments,
    contained,
    import_task,
)
from nanotriton.executor.judge.task.settings import Settings, take_place
from nanotriton.tasks.task import REQUIRED, Task
from nanotriton.verdict import TaskFault


class Code:
    """The code of one task, on a device."""

    def __init__(self, task: Task, device: torch.device):
        self.task, self.device = task, device
        self.settings = Settings()
        self.names: dict = {}  # of the task's module
        self.default_cuda = False  # whether it makes tensors on a GPU by default
        self.examined = False  # until then it is looked at more closely, and waited for
        self.prints = Allowance(task.name)
        self.asserts: Asserts | None = None  # on a CPU operators look for themselves
        if device.type == "cuda":
            torch.cuda.init()
            self.asserts = Asserts()
        self.unsettled: str | None = None  # the kind of inputs that a GPU may still be computing with

    def load(self) -> None:
        """Run the task's file. Raises TaskFault."""
        with self.active():
            self.module = import_task(self.task)
        self.names = vars(self.module)
        if missing := [name for name in REQUIRED if name not in self.names]:
            raise TaskFault("unsupported", f"the task defines no {', '.join(missing)}")
        self.default_cuda = take_place()

    @property
    def defaults(self) -> dict[str, str | bool]:
        """torch's defaults that the task has set, which a candidate finds when it is imported after it."""
        dtype = self.settings.own.get("default dtype", torch.float32)
        return {"dtype": str(dtype).removeprefix("torch."), "cuda": self.default_cuda}

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Run the task's own code, with its own settings. Raises Exited if it wants to end the process."""
        with self.settings.active(), contained(self.prints):
            yield

    @contextlib.contextmanager
    def active_on(self, kind: str) -> Iterator[None]:
        """`active`, on inputs of this kind. Raises ContextLost.

        While the task is examined this waits until the GPU is done too. Later nobody waits before `settle`,
        so that the GPU has something to do.
        """
        done = False
        try:
            with self.active(), self.asserts or contextlib.nullcontext():
                yield
            done = True
        finally:
            if self.device.type == "cuda":
                # a loss on inputs of the task's own weighs more, so it is not assumed
                if self.unsettled in (None, "plain"):
                    self.unsettled = kind
                if not (done and self.examined):
                    self.settle()

    def settle(self) -> None:
        """Wait until what the task's own code has begun is done. Raises ContextLost."""
        kind, self.unsettled = self.unsettled, None
        if kind is not None and driver.context_is_lost():
            raise ContextLost(kind)

    def default_device(self):
        """Inside, tensors are made on the device by default. On a CPU they are anyway, at no cost."""
        return self.device if self.device.type != "cpu" else contextlib.nullcontext()

    def arguments(self, name: str) -> list:
        """What get_inputs or get_init_inputs returns, as a list of arguments. Raises TaskFault."""
        model = self.names["Model"]
        function = model if name == "get_init_inputs" else partial(model.forward, None)
        given = arguments(self.names[name](), function, name)
        if not self.examined:
            check_arguments(given, name)
        return given
