"""Torch, unseen: what the recorder itself asks of tensors is no part of a recording."""

import torch


class Quiet:
    """A context in which no mode of ours sees what torch does. One inside another costs nothing."""

    def __init__(self):
        self.depth = 0

    def __enter__(self) -> None:
        if not self.depth:
            # guards in C++: to take the modes off their stack and put them back takes ten times as long
            self.contexts = torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch()
            for context in self.contexts:
                context.__enter__()
        self.depth += 1

    def __exit__(self, *error) -> None:
        self.depth -= 1
        if not self.depth:
            for context in reversed(self.contexts):
                context.__exit__(*error)


_quiet = Quiet()


def quiet() -> Quiet:
    return _quiet
