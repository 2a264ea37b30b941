"""Which stress kinds a candidate of a task is judged under: a table of trials, and what each kind
needs of a task."""

from dataclasses import dataclass

from nanotriton.executor.judge.inputs.stress import ONCE, OTHERS_ALONE, PADDED

# Of each trial the first kind that the task survives; without one there is no such trial.
TRIALS = (
    ("plain",),
    (
        *("equals beside faint", "equals", "tied beside faint", "tied", "scaled beside faint", "scaled"),
        *("tied positive", "positive", "plain"),
    ),
    (
        *("faint", "padded", "uneven", "faint heavy", "heavy"),
        *("faint positive", "padded positive", "uneven positive", "positive"),
        *("edges", "inside", "plain"),
    ),
    ("wild", "infinite", "beyond"),
    ("holes",),  # beside infinities, which a task may turn into its largest number, NaN would not be seen
)
BEFORE = ("sunk", "plain")  # the same for the first of several calls (trials/calls.py)
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
        "histc",
        "histogram",
        "grid_sampler_2d",
        "grid_sampler_3d",
    ]
)
# What rounds a float to a whole one, and what else does so on the way to another number.
WHOLE = frozenset(["round", "floor", "ceil", "trunc", "fix", "frac"])
QUOTIENTS = frozenset(["floor_divide", "remainder", "fmod", "rounding_mode", "truncating_cast"])
# Which of equal elements comes first is anyone's choice.
ASKED = frozenset(["sort", "topk"])  # ties.indifferent can tell whether the answer depends on that
UNSTABLE = frozenset(["kthvalue", "median", "mode", "cummax", "cummin"]) | ASKED
# kind: operators of which the task must call one
ONLY = {
    "equals": ASKED,
    "equals beside faint": ASKED,
    "tied": ROUNDING | ASKED,
    "tied beside faint": ROUNDING | ASKED,
    "tied positive": ROUNDING | ASKED,
    "wild": NAN_AWARE,
    "holes": NAN_AWARE,
    "infinite": NAN_AWARE,
    "beyond": WHOLE,
}
# kind: operators of which the task must call none, because elements tie, or differ by less than rounding
NEVER = dict.fromkeys(
    ("equals", "tied", "tied positive", "edges", "faint heavy", *PADDED, *OTHERS_ALONE),
    UNSTABLE,
)
NEVER["beyond"] = QUOTIENTS  # a large one has no digits left in a kernel's own division


def fits(kind: str, called: set[str], drawn: int) -> bool:
    """Whether a kind is of use for a task that calls these operators and draws so many tensors of floats. If
    it calls one of ASKED, ties may still be unfair (`ties_choices`)."""
    if kind in OTHERS_ALONE and drawn < 2:
        return False
    needed, refused = ONLY.get(kind), NEVER.get(kind, frozenset()) - ASKED
    return (needed is None or bool(needed & called)) and not refused & called


def ties_choices(kind: str, called: set[str]) -> bool:
    """Whether a kind ties elements of which such a task chooses some."""
    return bool(NEVER.get(kind, frozenset()) & ASKED & called)


@dataclass(frozen=True)
class Trial:
    """What a candidate is run on: drawn inputs, and weights."""

    kind: str  # one of stress.KINDS, or MOVED and one of them
    inputs: int  # seed
    # Seed. If it is negative, the weights are those of its opposite after some training (training.train_).
    # If it has the bit of OTHER_NUMBERS, Python's numbers are others: it takes a recording of its own.
    # If it has the bit of SAME_BUFFERS, training leaves buffers as they are. If it has the bit of GROWN, it
    # makes some weights large.
    weights: int


OTHER_NUMBERS, SAME_BUFFERS, GROWN = 1 << 62, 1 << 61, 1 << 60


def untrained(weights: int) -> int:
    """The seed of weights before their training: that of the constructor."""
    return abs(weights) & ~(SAME_BUFFERS | GROWN)


def with_same_buffers(weights: int) -> int:
    """The seed for weights whose training leaves buffers as they are; others have no training."""
    return -(-weights | SAME_BUFFERS) if weights < 0 else weights


def with_other_numbers(weights: int) -> int:
    """The seed for the same weights and training with other numbers of Python's."""
    return weights | OTHER_NUMBERS if weights > 0 else -(-weights | OTHER_NUMBERS)


def grown(weights: int) -> int:
    """The seed for weights of which training makes some large; others have no training."""
    return -(-weights | GROWN) if weights < 0 else weights


def grows(weights: int) -> bool:
    """Whether the training of these weights makes some large."""
    return weights < 0 and bool(-weights & GROWN)


def trains_buffers(weights: int) -> bool:
    """Whether the training of these weights changes buffers too."""
    return weights < 0 and not -weights & SAME_BUFFERS


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
