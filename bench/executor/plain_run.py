"""Runs one file for recordability.py, as it is and without a recorder, and saves its answer's tensors.

    python -P plain_run.py SOURCE.py SAVED.pt SEED

The recorder draws random tensors on the CPU. So does this run, so that both have the same numbers.
"""

import importlib.util
import sys

import torch

DRAWS = ("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm")
FILLS = ("normal_", "uniform_", "random_")


def drawn_on_cpu(name: str):
    """torch.NAME with its numbers drawn on the CPU and then moved to where they were asked for."""
    real = getattr(torch, name)
    like = name.endswith("_like")

    def draw(*args, **kwargs):
        device = kwargs.pop("device", None) or ("cuda" if like else "cpu")
        requires_grad = kwargs.pop("requires_grad", False)
        kwargs.pop("generator", None)
        if like:
            args = [torch.empty(a.shape, dtype=a.dtype) if isinstance(a, torch.Tensor) else a for a in args]
        return real(*args, **kwargs, device="cpu").to(device).requires_grad_(requires_grad)

    return draw


def filled_on_cpu(name: str):
    """Tensor.NAME, such as normal_, with its numbers drawn on the CPU and copied into the tensor."""
    real = getattr(torch.Tensor, name)

    def fill(self, *args, **kwargs):
        return self.copy_(real(torch.empty(self.shape, dtype=self.dtype), *args, **kwargs))

    return fill


def main(source: str, saved: str, seed: int) -> None:
    for name in DRAWS:
        setattr(torch, name, drawn_on_cpu(name))
    for name in FILLS:
        setattr(torch.Tensor, name, filled_on_cpu(name))
    torch.manual_seed(seed)
    spec = importlib.util.spec_from_file_location("candidate", source)
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module  # Triton and pickle look a function's module up by its name
    spec.loader.exec_module(module)
    answers = [v for name, v in vars(module).items() if name.startswith(("result", "test_results"))]
    leaves = torch.utils._pytree.tree_leaves(answers[-1])
    torch.save([t.detach().cpu() for t in leaves if isinstance(t, torch.Tensor)], saved)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
