"""A plan: what a candidate's forward would do, as data. JSON and raw bytes, never pickle, checked before any use.

The recorder (untrusted) writes one, the replayer (trusted) runs it. A plan knows

    storages   flat blocks of bytes: an input's, a weight's, a constant's, or one the candidate allocated ("temp")
    tensors    (storage, dtype, shape, stride, offset): views cost no step, they are just another tensor
    kernels    TTIR text and the launch options that survive (OPTIONS)
    steps      ATen calls, launches, and choices among an autotuner's configurations, in order
    outputs    a tree that names the answer's tensors

`Plan.from_bytes` and `validate` raise PlanError, one line, for anything that is not a well-formed plan: an id out of
range, a view that leaves its storage, an operator outside the list, an argument that is not what the kernel's own
signature in the TTIR says. What they let through cannot run Python, name a file, or ask for more memory than allowed.
"""

import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from nanotriton.plan.aten import ALLOWED, PlanError, check, check_value, rehearse, tensor_ids
from nanotriton.plan.signature import flatten, signature

MAGIC = b"nanotriton-plan-1\n"
MAX_BYTES = 512 << 20  # a plan on the wire, weights included
MAX_HEADER = 32 << 20
MAX_MEMORY = 16 << 30  # all storages together
MAX_COUNT = {"storages": 100_000, "tensors": 200_000, "kernels": 4_096, "steps": 100_000, "weights": 50_000}
MAX_ALTERNATIVES = 256
MAX_TTIR = 4 << 20
MAX_DIMS = 25  # torch's own is 64; Triton's and ATen's kernels stop at 25
GRID_LIMIT = (2**31 - 1, 65_535, 65_535)  # CUDA's
KINDS = ("input", "weight", "const", "temp")
DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.bool,
        torch.complex64,
        torch.complex128,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    )
}
OPTIONS = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None, "launch_cooperative_grid": False}
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,511}")
HASH = re.compile(r"[0-9a-f]{32}")


@dataclass
class Storage:
    kind: str  # input, weight, const or temp
    nbytes: int
    dtype: str  # of the first tensor in it: chooses the poison
    # hash of the initial bytes (weight, const); a weight's may be absent from `Plan.blobs`
    blob: str | None = None


@dataclass(frozen=True)
class Tensor:
    storage: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # in elements


@dataclass
class Weight:
    """A parameter, buffer or tensor attribute of the module. Several names: tied. No name: not in the state_dict."""

    names: list[str]
    tensor: int


@dataclass
class Kernel:
    name: str
    ttir: str  # with locations: lines of "candidate.py"
    options: dict[str, Any]  # OPTIONS' keys, all of them
    # (TTIR type, divisibility), from the text
    signature: list[tuple[str, int]] = field(default_factory=list, compare=False)

    @functools.cached_property
    def bare(self) -> str:
        """What is compiled: the text without locations, so that the same kernel elsewhere in a file is the same kernel, and without
        device_print, which computes nothing and on a GPU writes to the console of whoever judges."""
        return re.sub(
            r"^#loc.*\n|^ *tt\.print .*\n| loc\((?:[^()\n]|\([^()\n]{0,200}\)){0,200}\)",
            "",
            self.ttir,
            flags=re.MULTILINE,
        )

    @functools.cached_property
    def key(self) -> str:
        """Names the cubin: the bare text and the options decide it."""
        return digest((self.bare + json.dumps(self.options, sort_keys=True)).encode())


@dataclass
class Aten:
    op: str  # "add.Tensor"
    args: list  # JSON values as in aten.py, tensors by id
    kwargs: dict[str, Any]
    outs: list[int | None]  # tensor of each result; None: an existing tensor (in place) or nothing
    line: int = 0  # of the candidate's file; 0: unknown

    @property
    def name(self) -> str:
        """Without the overload."""
        return self.op.split(".")[0]


@dataclass
class Launch:
    kernel: int
    grid: tuple[int, int, int]
    # (Triton's type, value): a number, a tensor id for a pointer, a list for a descriptor
    args: list[tuple[str, Any]]
    line: int = 0

    @property
    def tensors(self) -> list[int]:
        """Those that it points at, in order."""
        return [
            value[0] if ty.startswith("tensordesc") else value
            for ty, value in self.args
            if ty.startswith(("*", "tensordesc"))
        ]


@dataclass
class Choice:
    """An autotuned launch: one alternative per configuration. Choices with the same key choose the same index."""

    key: int
    alternatives: list[list["Aten | Launch"]]
    line: int = 0


Step = Aten | Launch | Choice
STEPS = {"aten": Aten, "launch": Launch, "choice": Choice}


@contextlib.contextmanager
def malformed():
    """Whatever a stranger's bytes bring about inside is a PlanError, one line."""
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
    blobs: dict[str, bytes] = field(default_factory=dict)  # hash -> bytes

    # -- what rules and verdicts ask
    # ------------------------------------------------------------------------------

    def flat_steps(self, chosen: Mapping[int, int] = MappingProxyType({})) -> list[Aten | Launch]:
        """Every call in order, a choice standing for the alternative that `chosen` has for its key, or its first."""
        return [
            s
            for step in self.steps
            for s in (step.alternatives[chosen.get(step.key, 0)] if isinstance(step, Choice) else [step])
        ]

    def every_call(self) -> list[Aten | Launch]:
        """Those of all alternatives of every choice."""
        return [
            s
            for step in self.steps
            for calls in (step.alternatives if isinstance(step, Choice) else [[step]])
            for s in calls
        ]

    def launches(self, chosen: Mapping[int, int] = MappingProxyType({})) -> list[Launch]:
        return [step for step in self.flat_steps(chosen) if isinstance(step, Launch)]

    def nbytes(self, tensor: int) -> int:
        """Bytes a tensor's elements take (an expanded dimension counts once)."""
        t, size = self.tensors[tensor], DTYPES[self.tensors[tensor].dtype].itemsize
        for n, s in zip(t.shape, t.stride, strict=True):
            size *= n if s else min(n, 1)
        return size

    def aten_bytes(self) -> dict[str, int]:
        """ATen calls by name -> bytes of the tensors they read and write."""
        total: dict[str, int] = {}
        for step in self.flat_steps():
            if isinstance(step, Aten):
                touched = tensor_ids([step.args, step.kwargs]) + [o for o in step.outs if o is not None]
                total[step.op] = total.get(step.op, 0) + sum(self.nbytes(t) for t in touched)
        return total

    @functools.cached_property
    def seen_as(self) -> list[set[str]]:
        """For each storage the dtypes under which a step may see its bytes."""
        found = [{s.dtype} for s in self.storages]
        for t in self.tensors:
            found[t.storage].add(t.dtype)
        return found

    def output_tensors(self) -> list[int]:
        return tensor_ids(self.outputs)

    # -- bytes
    # ----------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """MAGIC, the header's length (8 bytes, little end first), the JSON header, the blobs one after another."""
        header = {
            "storages": [[s.kind, s.nbytes, s.dtype, s.blob] for s in self.storages],
            "tensors": [[t.storage, t.dtype, list(t.shape), list(t.stride), t.offset] for t in self.tensors],
            "kernels": [[k.name, k.ttir, k.options] for k in self.kernels],
            "steps": [_step_to_json(s) for s in self.steps],
            "weights": [[w.names, w.tensor] for w in self.weights],
            "inputs": self.inputs,
            "outputs": self.outputs,
            "blobs": [[key, len(data)] for key, data in self.blobs.items()],
        }
        text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
        return b"".join([MAGIC, len(text).to_bytes(8, "little"), text, *self.blobs.values()])

    @classmethod
    @malformed()
    def from_bytes(cls, data: bytes, max_memory: int = MAX_MEMORY) -> "Plan":
        """Parse and validate. Raises PlanError; never runs anything the bytes say."""
        start = len(MAGIC) + 8
        if len(data) > MAX_BYTES:
            raise PlanError(f"plan of {len(data)} bytes; the limit is {MAX_BYTES}")
        if data[: len(MAGIC)] != MAGIC or len(data) < start:
            raise PlanError("not a plan: wrong first bytes")
        size = int.from_bytes(data[len(MAGIC) : start], "little")
        if size > min(MAX_HEADER, len(data) - start):
            raise PlanError(f"header of {size} bytes does not fit")
        header = json.loads(data[start : start + size], parse_constant=_no_constant)
        blobs, at = {}, start + size
        for key, length in header["blobs"]:
            check(type(key) is str and type(length) is int and length >= 0, "a blob is [hash, length]")
            blobs[key] = data[at : at + length]
            at += length
        check(at == len(data), "blobs do not fill the plan exactly")
        plan = cls(
            storages=[Storage(*s) for s in header["storages"]],
            tensors=[
                Tensor(s, d, tuple(shape), tuple(stride), o) for s, d, shape, stride, o in header["tensors"]
            ],
            kernels=[Kernel(*k) for k in header["kernels"]],
            steps=[_step_from_json(s) for s in header["steps"]],
            weights=[Weight(*w) for w in header["weights"]],
            inputs=header["inputs"],
            outputs=header["outputs"],
            blobs=blobs,
        )
        plan.validate(max_memory)
        return plan

    # -- validation
    # -----------------------------------------------------------------------------------------------

    @malformed()
    def validate(self, max_memory: int = MAX_MEMORY) -> None:
        """Raise PlanError (one line) unless every field is well-formed and within the limits. Fills `Kernel.signature`."""
        for name, limit in MAX_COUNT.items():
            check(
                len(getattr(self, name)) <= limit, f"{len(getattr(self, name))} {name}; the limit is {limit}"
            )
        for key, data in self.blobs.items():
            check(
                HASH.fullmatch(key) is not None and digest(data) == key,
                "a blob's bytes are not what its hash says",
            )
        for i, s in enumerate(self.storages):
            check(s.kind in KINDS and s.dtype in DTYPES and _is_size(s.nbytes), f"storage {i} is malformed")
            check(
                s.blob is None or s.kind in ("weight", "const"),
                f"storage {i}: a {s.kind} has no initial bytes",
            )
            check(s.kind != "const" or s.blob in self.blobs, f"storage {i}: a constant without its bytes")
            check(
                s.blob not in self.blobs or len(self.blobs[s.blob]) == s.nbytes,
                f"storage {i}: bytes of another size",
            )
        total = sum(s.nbytes for s in self.storages)
        check(total <= max_memory, f"{total} bytes of tensors; the limit is {max_memory}")
        for i, t in enumerate(self.tensors):
            self._check_tensor(i, t)
        for k in self.kernels:
            _check_kernel(k)
        for w in self.weights:
            check(all(type(n) is str and len(n) < 1024 for n in w.names), "a weight's names are strings")
            check(
                self._tensor(w.tensor).storage >= 0 and self._kind(w.tensor) == "weight",
                "a weight is not in a weight storage",
            )
        for tree, what in ((self.inputs, "inputs"), (self.outputs, "outputs")):
            check_value(tree, len(self.tensors), what)
        ids = tensor_ids(self.inputs)
        check(all(self._kind(i) == "input" for i in ids), "an input is not in an input storage")
        check(len({self.tensors[i].storage for i in ids}) == len(ids), "two inputs share a storage")
        check(
            len(ids) == sum(s.kind == "input" for s in self.storages), "an input storage that no input fills"
        )
        for step in self.steps:
            self._check_step(step, nested=False)

    def _tensor(self, index: Any) -> Tensor:
        check(type(index) is int and 0 <= index < len(self.tensors), f"no tensor {index!r}")
        return self.tensors[index]

    def _place(self, index: Any) -> tuple[int, int, int]:
        t = self._tensor(index)
        size = DTYPES[t.dtype].itemsize
        return t.offset * size, size, self.storages[t.storage].nbytes

    def _kind(self, index: int) -> str:
        return self.storages[self._tensor(index).storage].kind

    def meta(self, index: int) -> torch.Tensor:
        t = self.tensors[index]
        return torch.empty_strided(t.shape, t.stride, dtype=DTYPES[t.dtype], device="meta")

    def _check_tensor(self, i: int, t: Tensor) -> None:
        check(
            type(t.storage) is int and 0 <= t.storage < len(self.storages),
            f"tensor {i}: no storage {t.storage!r}",
        )
        check(t.dtype in DTYPES, f"tensor {i}: unknown dtype {t.dtype!r}")
        check(len(t.shape) == len(t.stride) <= MAX_DIMS, f"tensor {i}: shape and stride of different length")
        check(
            all(_is_size(n) for n in (*t.shape, *t.stride, t.offset)),
            f"tensor {i}: sizes are integers from 0 to 2**48",
        )
        last = t.offset + sum((n - 1) * s for n, s in zip(t.shape, t.stride, strict=True))
        end = (last + 1) * DTYPES[t.dtype].itemsize if 0 not in t.shape else 0
        check(end <= self.storages[t.storage].nbytes, f"tensor {i} leaves its storage")

    def _check_step(self, step: Step, nested: bool) -> None:
        check(_is_size(step.line), "a step's line is a number")
        if isinstance(step, Aten):
            check(
                type(step.op) is str and step.name in ALLOWED,
                f"operator {str(step.op)[:80]!r} is not in the list",
            )
            check(re.fullmatch(r"\w+\.\w+", step.op) is not None, "an operator is name.overload")
            check_value(step.args, len(self.tensors), step.op)
            check(
                type(step.kwargs) is dict and all(NAME.fullmatch(k) for k in step.kwargs),
                "keyword arguments have names",
            )
            for value in step.kwargs.values():
                check_value(value, len(self.tensors), step.op)
            check(len(step.outs) <= 64, f"{step.op} has too many results")
            results = rehearse(step.op, step.args, step.kwargs, self.meta)
            check(len(step.outs) == len(results), f"{step.op} has {len(results)} results")
            for out, result in zip(step.outs, results):
                if out is not None:
                    check(self._kind(out) == "temp", f"{step.op}: a result goes to a temporary")
                    same = (
                        isinstance(result, torch.Tensor)
                        and result.shape == self.tensors[out].shape
                        and result.dtype == DTYPES[self.tensors[out].dtype]
                    )
                    check(same, f"{step.op}: the result is not of the tensor's shape and dtype")
        elif isinstance(step, Launch):
            self._check_launch(step)
        else:
            check(not nested, "a choice inside a choice")
            check(
                _is_size(step.key) and 0 < len(step.alternatives) <= MAX_ALTERNATIVES,
                "a choice needs a key and alternatives",
            )
            for inner in (s for alternative in step.alternatives for s in alternative):
                self._check_step(inner, nested=True)

    def _check_launch(self, step: Launch) -> None:
        check(type(step.kernel) is int and 0 <= step.kernel < len(self.kernels), f"no kernel {step.kernel!r}")
        kernel = self.kernels[step.kernel]
        check(len(step.grid) == 3, "a grid has three sizes")
        for n, limit in zip(step.grid, GRID_LIMIT, strict=True):
            check(
                type(n) is int and 0 <= n <= limit,
                f"{kernel.name}: grid {tuple(step.grid)} is outside the GPU's limits",
            )
        flat = [x for ty, value in step.args for x in flatten(kernel.name, ty, value, self._place)]
        check(
            len(flat) == len(kernel.signature),
            f"{kernel.name}: {len(flat)} arguments for {len(kernel.signature)} parameters",
        )
        for i, ((got, address), (want, divisor)) in enumerate(zip(flat, kernel.signature, strict=True)):
            check(got == want, f"{kernel.name}: argument {i} is {got}, the kernel wants {want}")
            check(
                address % divisor == 0,
                f"{kernel.name}: argument {i} is not a multiple of {divisor} as the kernel assumes",
            )


def digest(data: bytes) -> str:
    """32 hex digits that name some bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _check_kernel(k: Kernel) -> None:
    check(type(k.name) is str and NAME.fullmatch(k.name) is not None, "a kernel's name is an identifier")
    check(
        type(k.ttir) is str and len(k.ttir) <= MAX_TTIR,
        f"{k.name}: the TTIR is text of at most {MAX_TTIR} bytes",
    )
    check(
        type(k.options) is dict and k.options.keys() == OPTIONS.keys(),
        f"{k.name}: options are {', '.join(OPTIONS)}",
    )
    o = k.options
    check(
        type(o["num_warps"]) is int and o["num_warps"] in (1, 2, 4, 8, 16, 32),
        f"{k.name}: num_warps is a power of two up to 32",
    )
    check(
        type(o["num_stages"]) is int and 0 <= o["num_stages"] <= 64, f"{k.name}: num_stages is from 0 to 64"
    )
    check(
        type(o["num_ctas"]) is int and o["num_ctas"] in (1, 2, 4, 8, 16),
        f"{k.name}: num_ctas is a power of two up to 16",
    )
    check(
        o["maxnreg"] is None or (type(o["maxnreg"]) is int and 16 <= o["maxnreg"] <= 255),
        f"{k.name}: maxnreg is from 16 to 255",
    )
    check(type(o["launch_cooperative_grid"]) is bool, f"{k.name}: launch_cooperative_grid is a boolean")
    k.signature = signature(k.ttir, k.name)


def _step_to_json(step: Step) -> list:
    if isinstance(step, Aten):
        return ["aten", step.op, step.args, step.kwargs, step.outs, step.line]
    if isinstance(step, Launch):
        return ["launch", step.kernel, list(step.grid), [list(a) for a in step.args], step.line]
    return ["choice", step.key, [[_step_to_json(s) for s in a] for a in step.alternatives], step.line]


def _step_from_json(step: list) -> Step:
    kind, *rest = step
    check(kind in STEPS, f"unknown step {str(kind)[:80]!r}")
    if kind == "launch":
        kernel, grid, args, line = rest
        return Launch(kernel, tuple(grid), [(ty, value) for ty, value in args], line)
    if kind == "choice":
        key, alternatives, line = rest
        return Choice(key, [[_step_from_json(s) for s in a] for a in alternatives], line)
    return Aten(*rest)


def _is_size(n: Any) -> bool:
    return type(n) is int and 0 <= n < 2**48


def _no_constant(text: str):
    raise PlanError(f"{text} is no JSON")
