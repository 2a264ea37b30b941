"""The signature of a kernel, read off its TTIR, and the arguments of a launch in the signature's terms."""

import re
from collections.abc import Callable
from typing import Any

from nanotriton.plan.aten import PlanError, check

# Triton's name of an argument's type -> TTIR's
SCALARS = {
    "i1": "i1",
    "i8": "i8",
    "i16": "i16",
    "i32": "i32",
    "i64": "i64",
    "fp16": "f16",
    "bf16": "bf16",
    "fp32": "f32",
    "fp64": "f64",
    "fp8e4nv": "f8E4M3FN",
    "fp8e5": "f8E5M2",
    "fp8e4b15": "i8",
}
# Tensor id -> (bytes from the storage's start to its first element, bytes an element, bytes of the storage)
Place = Callable[[Any], tuple[int, int, int]]
MAX_PARAMETER = 2048  # characters
_PARAMETER = re.compile(r"%[\w.$-]+: (\S+?(?:<.*?>+)?)(?: \{([^}]*)\})?(?: loc\(.*\))?")
_DIVISIBILITY = re.compile(r"tt\.divisibility = (\d+)")


def signature(ttir: str, name: str) -> list[tuple[str, int]]:
    """[(type, divisibility)] of the public function's parameters, read off the text.

    Raises PlanError unless `name` is the only public function.
    """
    heads = re.findall(r"tt\.func public @([\w.]+)\(", ttir)
    check(heads == [name], f"the TTIR has the public functions {heads[:4]}, not just {name!r}")
    head = f"tt.func public @{name}("
    found = []
    for text in _split(ttir, ttir.index(head) + len(head)):
        check(len(text) < MAX_PARAMETER, "a parameter of the TTIR's function is too long")
        match = _PARAMETER.fullmatch(text)
        check(match is not None, f"cannot read the parameter {text[:80]!r}")
        divisor = _DIVISIBILITY.search(match[2] or "")
        found.append((one_descriptor(match[1]), int(divisor[1]) if divisor else 1))
    return found


def _split(ttir: str, start: int) -> list[str]:
    """A function's parameters as text. Their list begins at `start` and ends at its closing parenthesis."""
    parameters = []
    depth, begin = 0, start
    for i in range(start, len(ttir)):
        character = ttir[i]
        if depth == 0 and character in ",)":
            parameters.append(ttir[begin:i].strip())
            begin = i + 1
            if character == ")":
                return [text for text in parameters if text]
        if character in "<({[":
            depth += 1
        elif character in ">)}]":
            depth -= 1
    raise PlanError("the TTIR's function has no end of its parameters")


def one_descriptor(ty: str) -> str:
    """A descriptor's type as triton 3.8 writes it, also where it was written by 3.6."""
    return re.sub(r"^!tt\.tensordesc<tensor<(.*)>>$", r"!tt.tensordesc<\1>", ty)


def flatten(name: str, ty: Any, value: Any, place: Place) -> list[tuple[str, int]]:
    """[(TTIR type, number)] of one recorded argument of the kernel `name`; a descriptor becomes several.

    The number is an address or an integer's value. The divisibility of the kernel's parameter is about it.
    """
    check(type(ty) is str and len(ty) < 128, f"{name}: an argument's type is a short string")
    if ty.startswith("tensordesc<"):
        return _descriptor(name, ty, value, place)
    if ty[:1] == "*":
        start, _, _ = place(value)
        return [(f"!tt.ptr<{_element(ty)}>", start)]
    wanted = SCALARS.get(_signless(ty))
    check(wanted is not None, f"{name}: unknown argument type {ty!r}")
    if wanted[0] == "i":
        limit = 2 ** int(wanted[1:])
        fits = type(value) in (int, bool) and -limit < value < limit
        check(fits, f"{name}: {value!r} is no {ty}")
        return [(wanted, int(value))]
    check(type(value) is float or value in ("inf", "-inf", "nan"), f"{name}: {value!r} is no {ty}")
    return [(wanted, 0)]


def _descriptor(name: str, ty: str, value: Any, place: Place) -> list[tuple[str, int]]:
    """The block, then the shape (i32) and the strides (i64), of a descriptor.

    value: [tensor id, shape, strides, padding "zero" | "nan"].
    """
    match = re.match(r"tensordesc<(\w+)\[([\d, ]+)\]", ty)
    check(match is not None, f"{name}: unknown descriptor type {ty!r}")
    base, shape, strides, padding = value
    start, itemsize, nbytes = place(base)
    block = [int(n) for n in match[2].split(",")]
    same_rank = len(shape) == len(strides) == len(block) <= 5
    check(same_rank and padding in ("zero", "nan"), f"{name}: malformed descriptor")
    for size, stride in zip(shape, strides):
        check(type(size) is int and 0 < size < 2**31, f"{name}: malformed descriptor")
        check(type(stride) is int and 0 <= stride < 2**48, f"{name}: malformed descriptor")
    last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    end = start + (last + 1) * itemsize
    check(end <= nbytes, f"{name}: a descriptor leaves its storage")
    dims = "x".join(str(n) for n in block)
    element = _element("*" + match[1])
    sizes = [("i32", n) for n in shape] + [("i64", n) for n in strides]
    return [(f"!tt.tensordesc<{dims}x{element}>", start), *sizes]


def _signless(ty: str) -> str:
    """A type without its sign: "u8" -> "i8". TTIR's integers have none."""
    return re.sub(r"^u(\d)", r"i\1", ty)


def _element(pointer: str) -> str:
    """TTIR's element type of Triton's pointer type: "*kfp16" -> "f16", "**i8" -> "!tt.ptr<i8>"."""
    inner = pointer[1:].removeprefix("k")
    if inner[:1] == "*":
        return f"!tt.ptr<{_element(inner)}>"
    check(_signless(inner) in SCALARS, f"unknown pointer type {pointer!r}")
    return SCALARS[_signless(inner)]
