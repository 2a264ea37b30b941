"""A vault of the CPU's memory, for tests."""

import torch

from nanotriton.executor.gpu.vault import Vault


class Locked:
    """Memory that holds something else while it is locked."""

    def __init__(self, size: int):
        self.data = torch.zeros(size, dtype=torch.uint8)
        self.inside = self.data.clone()

    def unlock(self):
        self.data.copy_(self.inside)

    def lock(self):
        self.inside.copy_(self.data)
        self.data.fill_(0x7F)

    def tensor(self) -> torch.Tensor:
        return self.data


def vault(size: int = 1 << 20, chunk: int = 1 << 18) -> Vault:
    return Vault(size, torch.device("cpu"), Locked, chunk)
