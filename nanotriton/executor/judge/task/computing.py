"""What does a reference compute? Its ATen calls are watched as it runs once."""

import torch
from torch.overrides import TorchFunctionMode

from nanotriton.executor.judge.task.watching import Watching, is_view, new_memory, tensors_of
from nanotriton.plan.aten import words
from nanotriton.plan.facts import CREATE, MATMULS, MOVE, Facts, overlaps_itself

# Parts of names of operators that draw or don't, by their arguments. If they draw, a generator's state shows
# it.
MAY_DRAW = ("attention", "rnn", "rrelu")
# operators that sum their first operand's elements, many for one value
SUMS = words("""
    binary_cross_entropy huber_loss l1_loss linalg_vector_norm mean mse_loss nansum smooth_l1_loss
    std std_mean sum var var_mean logsumexp norm trace _adaptive_avg_pool2d _adaptive_avg_pool3d
""")


CONVOLUTIONS = words("convolution convolution_overrideable _cudnn_rnn cudnn_convolution")
PRODUCTS = frozenset([*MATMULS, "_cdist_forward", "addbmm", "addr", "_addmm_activation"])
# Operators for inputs near 0, whose digits the plain formula loses.
NEAR_ZERO = words("expm1 log1p")
# Operators that write to places that indices name -> the number of the argument that says that they add.
ACCUMULATING = {"index_put": 3, "put": 3, "scatter": 4}
# Operators that add up numbers along the dimension of their second argument, for each place in it.
RUNNING = words("cumsum logcumsumexp _softmax _log_softmax")
# Operators whose second result is the means that they take.
NORMS = words(
    "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit cudnn_batch_norm"
)


class Called(TorchFunctionMode):
    """The names of torch's functions that a reference calls: some of them (isfinite) are no ATen
    operators."""

    def __init__(self, names: set[str]):
        super().__init__()
        self.names = names

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "").strip("_")
        self.names.add(adding(name, args, kwargs or {}) or name)
        if name in ("ne", "eq") and len(args) == 2 and args[0] is args[1]:
            self.names.add("compares_with_itself")
        return func(*args, **(kwargs or {}))


class Computing(Watching):
    """Facts of the reference as it runs: the ATen calls that compute (no views, no copies) and their FLOPs,
    counted as on plans.

    called: the names of all calls, and of what only their arguments tell. draws: whether one of them takes
    random numbers.
    """

    def __init__(self):
        super().__init__()
        self.facts = Facts()
        self.draws = False
        self.made: set[int] = set()  # addresses of storages that operators made
        self.called: set[str] = set()
        self.functions = Called(self.called)

    def __enter__(self):
        self.functions.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.functions.__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.draws |= not any(part in name for part in MAY_DRAW)
        self.made |= new_memory(func, out)
        if is_view(func):
            return out
        reads = tensors_of([args, kwargs])
        writes = tensors_of(out)
        if name in NEAR_ZERO and reads and reads[0].untyped_storage().data_ptr() not in self.made:
            self.called.add("near_zero")  # of an input or a weight: log1p(exp(x)) is another matter
        self.called |= {adding(name, args, kwargs or {}) or name}
        self.called |= told_by_arguments(name, reads, writes, kwargs or {})
        self.facts.traffic += sum(map(nbytes, reads + writes))
        if name not in CREATE | MOVE:
            self.facts.computing[name] = self.facts.computing.get(name, 0) + 1
            self.count(name, reads, writes)
            self.facts.length = max(self.facts.length, summed(name, args, reads, writes))
        return out

    def fresh(self, output: torch.Tensor) -> bool:
        """Whether it lies in memory that forward made, each element in a place of its own."""
        made = output.untyped_storage().data_ptr() in self.made
        return made and not overlaps_itself(tuple(output.shape), output.stride())

    def count(self, name: str, reads: list[torch.Tensor], writes: list[torch.Tensor]) -> None:
        """Add a computing call's FLOPs and bytes."""
        self.facts.touched += sum(t.nbytes for t in [*reads, *writes])
        if length := multiplied(name, reads):
            self.facts.flops += 2.0 * writes[0].numel() * length
        else:
            self.facts.flops += max((t.numel() for t in reads + writes), default=0)


def multiplied(name: str, reads: list[torch.Tensor]) -> int:
    """How many products a matrix product or a convolution adds up for one value. 0: it is none."""
    if name in MATMULS:
        return reads[MATMULS[name]].shape[-1]
    return reads[1][0].numel() if name == "convolution" else 0


def summed(name: str, args: tuple, reads: list[torch.Tensor], writes: list[torch.Tensor]) -> int:
    """How many numbers a call adds up for one value."""
    if name in RUNNING and reads[0].dim():
        return reads[0].shape[args[1]]
    sums = writes[1] if name in NORMS and len(writes) > 1 else writes[0] if writes else None
    if name in SUMS | NORMS and sums is not None and sums.numel():
        return reads[0].numel() // sums.numel()
    return multiplied(name, reads)


def in_tf32(called: set[str], device: torch.device) -> frozenset[str]:
    """Those of these calls that multiply fp32 numbers in TF32 on this device, as torch is set now.

    By default convolutions on a GPU do, and nothing else does.
    """
    found: set[str] = set()
    if device.type == "cuda" and torch.backends.cudnn.allow_tf32:
        found |= called & CONVOLUTIONS
    if device.type == "cuda" and torch.get_float32_matmul_precision() != "highest":
        found |= called & PRODUCTS
    return frozenset(found)


def nbytes(t: torch.Tensor) -> int:
    """The bytes that a tensor's elements take. An expanded dimension counts once."""
    size = t.element_size()
    for n, stride in zip(t.shape, t.stride(), strict=True):
        size *= n if stride else min(n, 1)
    return size


def adding(name: str, args: tuple, kwargs: dict) -> str | None:
    """Another name for a write to places that indices name, if it adds to what is there.

    Then each of two writes to one place counts.
    """
    at = ACCUMULATING.get(name.strip("_"))
    added = kwargs.get("accumulate", kwargs.get("reduce", args[at] if at and len(args) > at else None))
    return f"{name} adding" if at and added else None


def told_by_arguments(name: str, reads: list, writes: list, kwargs: dict) -> set[str]:
    """What a call does beside its name: round a quotient, or cut off a fraction."""
    found = set()
    floats = [t.is_floating_point() for t in reads]
    if kwargs.get("rounding_mode"):
        found.add("rounding_mode")
    if name == "_to_copy" and any(floats) and not writes[0].is_floating_point():
        found.add("truncating_cast")
    return found
