"""Compile a kernel of ours as its wrapper launches it, on a machine without a GPU."""

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


class Launched:
    """A kernel that keeps what it is launched with."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return self

    def __call__(self, *args, **options):
        self.args, self.options = args, options

    def compile(self, card: int):
        """For a card of this compute capability, with what a launch would find out about the arguments: which are
        multiples of 16."""
        kinds = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}
        names = self.kernel.arg_names
        constants = {(names.index(n),): v for n, v in self.options.items() if n in names}
        types = [
            kinds[a.dtype] if isinstance(a, torch.Tensor) else "fp32" if isinstance(a, float) else "i32"
            for a in self.args
        ]
        aligned = [
            i
            for i, a in enumerate(self.args)
            if isinstance(a, torch.Tensor) or (isinstance(a, int) and a % 16 == 0)
        ]
        signature = dict(zip(names, types + ["constexpr"] * len(constants), strict=True))
        source = ASTSource(
            self.kernel,
            signature,
            constexprs=constants,
            attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
        )
        options = {n: v for n, v in self.options.items() if n not in names}
        return triton.compile(source, target=GPUTarget("cuda", card, 32), options=options)
