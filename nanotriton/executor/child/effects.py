"""What a candidate must leave as it finds it, because its caller shares it: torch's settings for the whole
process, and the random stream."""

import contextlib
from collections.abc import Callable, Iterator

import torch

from nanotriton.executor.child.quiet import quiet
from nanotriton.executor.common.construct import patched

RANDOM, GRADIENTS = "random stream", "gradients"
# By the names that they have in judge/task/settings.py. The precision of matrix products is none of them:
# kernels are often given out with a line that allows TF32.
SETTINGS: dict[str, Callable[[], object]] = {
    "default dtype": torch.get_default_dtype,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
}


class Effects:
    """Watches a candidate from its import on. `left` says afterwards what it has left changed."""

    def __init__(self):
        self.before = _settings()
        self.random = self.gradients = False
        self.switches: list[torch.set_grad_enabled] = []  # those that are no contexts, and switch for good

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """The candidate is imported, built and called inside."""
        switch = torch.set_grad_enabled
        init, enter, call = switch.__init__, switch.__enter__, switch.__call__

        def __init__(this, mode):
            init(this, mode)
            self.switches.append(this)

        def __enter__(this):
            self._is_context(this)
            return enter(this)

        def __call__(this, function):
            self._is_context(this)
            return call(this, function)

        replaced = [(switch, f.__name__, f) for f in (__init__, __enter__, __call__)]
        with patched(replaced):
            yield

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """A module is built inside. Two switches of gradients are one there and one back."""
        begun = len(self.switches)
        yield
        self.gradients |= (len(self.switches) - begun) % 2 == 1
        del self.switches[begun:]

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """forward is called inside."""
        before = _random_state()
        with self.building():
            yield
        self.random |= _random_state() != before

    def left(self) -> list[str]:
        """Names of settings, GRADIENTS and RANDOM."""
        now = _settings()
        found = [name for name, value in self.before.items() if now[name] != value]
        found += [GRADIENTS] if self.gradients or len(self.switches) % 2 else []
        return found + ([RANDOM] if self.random else [])

    def _is_context(self, switch: torch.set_grad_enabled) -> None:
        self.switches = [other for other in self.switches if other is not switch]


def _random_state() -> bytes:
    with quiet():
        return torch.default_generator.get_state().numpy().tobytes()


def _settings() -> dict[str, object]:
    return {name: read() for name, read in SETTINGS.items()}
