"""Which stress kinds a candidate of a task is judged under: a table of trials, and what each kind needs of a task."""

from dataclasses import dataclass

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nanotriton.executor.judge.draws import ONCE
from nanotriton.plan.facts import CREATE, MATMULS, MOVE, Facts

# Of each trial the first kind that the task survives; without one there is no such trial.
TRIALS = (
    ("plain",),
    ("tied", "scaled", "tied positive", "positive", "plain"),
    (
        *("padded", "uneven", "heavy", "padded positive", "uneven positive", "positive"),
        *("edges", "inside", "plain"),
    ),
    ("wild", "holes", "infinite"),
)
BEFORE = ("sunk", "plain")  # the same for the first of two calls (second.py)
MOVED = "moved "  # begins the kind of a draw whose constant arguments are moved too (moves.py)

# Others let NaN through, or meet it as it comes.
NAN_AWARE = frozenset(
    [
        "nan_to_num",
        "nan_to_num_",
        "isnan",
        "isinf",
        "isposinf",
        "isneginf",
        "isfinite",
        "isreal",
        "compares_with_itself",
        "fmin",
        "fmax",
        "nansum",
        "nanmean",
        "nanmedian",
        "nanquantile",
    ]
)
# What decides at an edge: between two roundings, or between yes and no.
ROUNDING = frozenset(
    [
        "round",
        "floor",
        "ceil",
        "trunc",
        "frac",
        "floor_divide",
        "remainder",
        "fmod",
        "rounding_mode",
        "truncating_cast",
        "bucketize",
        "searchsorted",
        "gt",
        "ge",
        "lt",
        "le",
        "eq",
        "ne",
        "sign",
        "sgn",
        "heaviside",
        "threshold",
        "hardshrink",
        "fake_quantize_per_tensor_affine_cachemask",
        "quantize_per_tensor",
    ]
)
# Which of equal elements comes first is anyone's choice.
UNSTABLE = frozenset(["sort", "topk", "kthvalue", "median", "mode", "cummax", "cummin"])
# Parts of names of operators that draw or don't, by their arguments. If they draw, a generator's state shows it.
MAY_DRAW = ("attention", "rnn", "rrelu")
# kind: operators of which the task must call one
ONLY = {
    "tied": ROUNDING,
    "tied positive": ROUNDING,
    "wild": NAN_AWARE,
    "holes": NAN_AWARE,
    "infinite": NAN_AWARE,
}
# kind: operators of which the task must call none, because elements tie
NEVER = dict.fromkeys(("tied", "tied positive", "padded", "padded positive", "edges"), UNSTABLE)


def fits(kind: str, called: set[str]) -> bool:
    """Whether a kind is of use for a task that calls these operators."""
    needed = ONLY.get(kind)
    return (needed is None or bool(needed & called)) and not NEVER.get(kind, frozenset()) & called


@dataclass(frozen=True)
class Trial:
    kind: str  # one of draws.KINDS, or MOVED and one of them
    inputs: int  # seed
    # Seed. If it is negative, the weights are those of its opposite after some training (construct.train_).
    # If it has the bit of OTHER_NUMBERS, Python's numbers are others, so that it takes a recording of its own.
    weights: int


OTHER_NUMBERS = 1 << 62


def has_other_numbers(weights: int) -> bool:
    """Whether a seed of weights is one with which Python's numbers are moved."""
    return bool(abs(weights) & OTHER_NUMBERS)


def late_leaves(kind: str, drawn: list[int], untouched: list[int], all_same: bool) -> tuple[int, ...]:
    """Numbers of the arguments that a kind has to distort once they are returned, because it missed them.

    drawn: arguments that are drawn. untouched: those that the kind left alone. all_same: it left all alone.
    """
    missed = [i for i in drawn if i in untouched]
    if kind not in ONCE:
        return tuple(missed)
    return tuple(missed[:1]) if all_same else ()


class Called(TorchFunctionMode):
    """The names of torch's functions that a reference calls: some of them (isfinite) are no ATen operators."""

    def __init__(self, names: set[str]):
        super().__init__()
        self.names = names

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "").strip("_")
        self.names.add(name)
        if name in ("ne", "eq") and len(args) == 2 and args[0] is args[1]:
            self.names.add("compares_with_itself")
        return func(*args, **(kwargs or {}))


class Computing(TorchDispatchMode):
    """Facts of the reference as it runs: the ATen calls that compute (no views, no copies) and their FLOPs, counted as
    on plans. called: the names of all calls, and of what only their arguments tell. draws: whether one of them takes
    random numbers."""

    def __init__(self):
        super().__init__()
        self.facts = Facts()
        self.draws = False
        self.called: set[str] = set()
        self.functions = Called(self.called)

    def __enter__(self):
        self.functions.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.functions.__exit__(*error)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # else the first call imports torch._dynamo, for seconds, to turn off what is never on here
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.draws |= not any(part in name for part in MAY_DRAW)
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if view:
            return out
        reads = [t for t in tree_leaves([args, kwargs]) if isinstance(t, torch.Tensor)]
        writes = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        self.called |= {name} | told_by_arguments(name, reads, writes, kwargs or {})
        if name not in CREATE | MOVE:
            self.facts.computing[name] = self.facts.computing.get(name, 0) + 1
            if name in MATMULS:
                self.facts.flops += 2.0 * writes[0].numel() * reads[MATMULS[name]].shape[-1]
            elif name == "convolution":
                self.facts.flops += 2.0 * writes[0].numel() * reads[1][0].numel()
            else:
                self.facts.flops += max((t.numel() for t in reads + writes), default=0)
        return out


def told_by_arguments(name: str, reads: list, writes: list, kwargs: dict) -> set[str]:
    """What a call does beside its name: round a quotient, or cut off a fraction."""
    found = set()
    floats = [t.is_floating_point() for t in reads]
    if kwargs.get("rounding_mode"):
        found.add("rounding_mode")
    if name == "_to_copy" and any(floats) and not writes[0].is_floating_point():
        found.add("truncating_cast")
    return found
