"""A plan: a candidate's forward as data. JSON and raw bytes, never pickle, checked before any use.

The recorder (untrusted) writes a plan, and the replayer (trusted) runs it. A plan has

    storages   flat blocks of bytes: an input's, a weight's, a constant's, or one that the candidate
               allocated ("temp")
    tensors    (storage, dtype, shape, stride, offset): a view costs no step, it is just another tensor
    kernels    TTIR text, and the launch options that matter (OPTIONS)
    steps      ATen calls, launches, and choices among an autotuner's configurations, in order
    outputs    a tree that names the answer's tensors

`Plan.from_bytes` and `Plan.validate` raise PlanError, one line, for anything that is not a well-formed plan:
an id out of range, a view that leaves its storage, an operator outside the list, an argument that doesn't fit
the kernel's own signature in the TTIR. A plan that passes cannot run Python, name a file, or ask for more
memory than allowed.
"""

import contextlib
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from nanotriton.plan.aten import PlanError, check, tensor_ids
from nanotriton.plan.parts import (
    DTYPES,
    MAX_MEMORY,
    OPTIONS,
    Aten,
    Call,
    Choice,
    Kernel,
    Launch,
    Step,
    Storage,
    Tensor,
    Tuning,
    Weight,
    digest,
)
from nanotriton.plan.validate import check_fields

__all__ = [
    "DTYPES",
    "OPTIONS",
    "Aten",
    "Call",
    "Choice",
    "Kernel",
    "Launch",
    "Plan",
    "PlanError",
    "Step",
    "Storage",
    "Tensor",
    "Tuning",
    "Weight",
    "digest",
]

MAGIC = b"nanotriton-plan-1\n"
MAX_BYTES = 512 << 20  # a plan on the wire, weights included
MAX_HEADER = 32 << 20
NOTHING_CHOSEN: Mapping[int, int] = MappingProxyType({})


@contextlib.contextmanager
def malformed():
    """Turn every error that a stranger's bytes bring about inside into a PlanError, one line."""
    try:
        yield
    except PlanError:
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        RecursionError,
        OverflowError,
        RuntimeError,  # torch's own, of sizes that it refuses
    ) as error:
        raise PlanError(f"malformed plan: {type(error).__name__}: {str(error)[:200]}") from None


@dataclass
class Plan:
    storages: list[Storage] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    inputs: Any = None  # tree of the arguments of forward
    outputs: Any = None  # tree of its result
    # for a later call, (storage here, storage in the plan of the call before) of what that call left behind
    carried: list[tuple[int, int]] = field(default_factory=list)
    # for a later call, name -> tensor of each parameter and buffer that a step may have written to
    state: dict[str, int] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)  # hash -> bytes

    # -- questions that rules and verdicts ask

    def flat_steps(self, chosen: Mapping[int, int] = NOTHING_CHOSEN) -> list[Call]:
        """Every call in order, with one alternative of each choice.

        chosen: the alternative's number for a choice's key. Without an entry it is the first alternative.
        """
        calls: list[Call] = []
        for step in self.steps:
            if isinstance(step, Choice):
                calls += step.alternatives[chosen.get(step.key, 0)]
            else:
                calls.append(step)
        return calls

    def every_call(self) -> list[Call]:
        """Every call in order, with all alternatives of every choice."""
        calls: list[Call] = []
        for step in self.steps:
            if isinstance(step, Choice):
                for alternative in step.alternatives:
                    calls += alternative
            else:
                calls.append(step)
        return calls

    def tuning_calls(self) -> list[Call]:
        """What autotuners call beside the configurations that they run."""
        choices = [step for step in self.steps if isinstance(step, Choice)]
        return [call for choice in choices if choice.tuning is not None for call in choice.tuning.calls]

    def launches(self, chosen: Mapping[int, int] = NOTHING_CHOSEN) -> list[Launch]:
        return [call for call in self.flat_steps(chosen) if isinstance(call, Launch)]

    def nbytes(self, tensor: int) -> int:
        """The bytes that a tensor's elements take. An expanded dimension counts once."""
        t = self.tensors[tensor]
        size = DTYPES[t.dtype].itemsize
        for n, stride in zip(t.shape, t.stride, strict=True):
            size *= n if stride else min(n, 1)
        return size

    @functools.cached_property
    def seen_as(self) -> list[set[str]]:
        """For each storage the dtypes under which a step may see its bytes."""
        found = [{s.dtype} for s in self.storages]
        for t in self.tensors:
            found[t.storage].add(t.dtype)
        return found

    def output_tensors(self) -> list[int]:
        return tensor_ids(self.outputs)

    def meta(self, index: int) -> torch.Tensor:
        """A tensor as torch's meta device has it: shape, stride and dtype without data."""
        t = self.tensors[index]
        return torch.empty_strided(t.shape, t.stride, dtype=DTYPES[t.dtype], device="meta")

    # -- bytes

    def to_bytes(self) -> bytes:
        """MAGIC, the header's length (8 bytes, little end first), the JSON header, then the blobs."""
        header = {
            "storages": [[s.kind, s.nbytes, s.dtype, s.blob] for s in self.storages],
            "tensors": [[t.storage, t.dtype, list(t.shape), list(t.stride), t.offset] for t in self.tensors],
            "kernels": [[k.name, k.ttir, k.options] for k in self.kernels],
            "steps": [_step_to_json(s) for s in self.steps],
            "weights": [[w.names, w.tensor] for w in self.weights],
            "inputs": self.inputs,
            "outputs": self.outputs,
            "carried": [list(pair) for pair in self.carried],
            "state": self.state,
            "blobs": [[key, len(data)] for key, data in self.blobs.items()],
        }
        text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
        return b"".join([MAGIC, len(text).to_bytes(8, "little"), text, *self.blobs.values()])

    @classmethod
    @malformed()
    def from_bytes(cls, data: bytes, max_memory: int = MAX_MEMORY) -> "Plan":
        """Parse and validate. Raises PlanError. Nothing that the bytes say is run."""
        if len(data) > MAX_BYTES:
            raise PlanError(f"plan of {len(data)} bytes; the limit is {MAX_BYTES}")
        header, at = _read_header(data)
        blobs = {}
        for key, length in header["blobs"]:
            check(type(key) is str and type(length) is int and length >= 0, "a blob is [hash, length]")
            blobs[key] = data[at : at + length]
            at += length
        check(at == len(data), "blobs do not fill the plan exactly")
        plan = cls(
            storages=[Storage(*s) for s in header["storages"]],
            tensors=[_tensor_from_json(*t) for t in header["tensors"]],
            kernels=[Kernel(*k) for k in header["kernels"]],
            steps=[_step_from_json(s) for s in header["steps"]],
            weights=[Weight(*w) for w in header["weights"]],
            inputs=header["inputs"],
            outputs=header["outputs"],
            carried=[tuple(pair) for pair in header["carried"]],
            state=header["state"],
            blobs=blobs,
        )
        plan.validate(max_memory)
        return plan

    @malformed()
    def validate(self, max_memory: int = MAX_MEMORY) -> None:
        """Raise PlanError (one line) unless every field is well-formed and within the limits.

        It also fills in `Kernel.signature`. max_memory: bytes of all storages together.
        """
        check_fields(self, max_memory)


def _read_header(data: bytes) -> tuple[dict, int]:
    """(header, where the blobs start) of a plan's bytes."""
    start = len(MAGIC) + 8
    if data[: len(MAGIC)] != MAGIC or len(data) < start:
        raise PlanError("not a plan: wrong first bytes")
    size = int.from_bytes(data[len(MAGIC) : start], "little")
    if size > min(MAX_HEADER, len(data) - start):
        raise PlanError(f"header of {size} bytes does not fit")
    header = json.loads(data[start : start + size], parse_constant=_no_constant)
    return header, start + size


def _no_constant(text: str):
    raise PlanError(f"{text} is no JSON")


def _tensor_from_json(storage, dtype, shape, stride, offset) -> Tensor:
    return Tensor(storage, dtype, tuple(shape), tuple(stride), offset)


def _step_to_json(step: Step) -> list:
    if isinstance(step, Aten):
        return ["aten", step.op, step.args, step.kwargs, step.outs, step.line]
    if isinstance(step, Launch):
        return ["launch", step.kernel, list(step.grid), [list(a) for a in step.args], step.line]
    alternatives = [_calls_to_json(calls) for calls in step.alternatives]
    return ["choice", step.key, alternatives, step.line, _tuning_to_json(step.tuning)]


def _tuning_to_json(tuning: Tuning | None) -> list | None:
    if tuning is None:
        return None
    return [_calls_to_json(calls) for calls in (tuning.before, tuning.after, tuning.end)]


def _calls_to_json(calls: list[Call]) -> list[list]:
    return [_step_to_json(call) for call in calls]


def _step_from_json(step: list) -> Step:
    kind, *rest = step
    check(kind in ("aten", "launch", "choice"), f"unknown step {str(kind)[:80]!r}")
    if kind == "aten":
        return Aten(*rest)
    if kind == "launch":
        kernel, grid, args, line = rest
        return Launch(kernel, tuple(grid), [(ty, value) for ty, value in args], line)
    key, alternatives, line, tuning = rest
    if tuning is not None:
        before, after, end = tuning
        tuning = Tuning(*map(_calls_from_json, (before, after, end)))
    return Choice(key, [_calls_from_json(calls) for calls in alternatives], line, tuning)


def _calls_from_json(calls: list[list]) -> list[Step]:
    """An alternative of a choice, or a part of its tuning. `validate` refuses one that holds a choice."""
    return [_step_from_json(call) for call in calls]
