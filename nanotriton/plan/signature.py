"""What a kernel's own signature, read off its TTIR, says about the arguments of a launch."""

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


def signature(ttir: str, name: str) -> list[tuple[str, int]]:
    """[(type, divisibility)] of the public function's parameters, read off the text. Raises PlanError if it isn't there."""
    heads = re.findall(r"tt\.func public @([\w.]+)\(", ttir)
    check(heads == [name], f"the TTIR has the public functions {heads[:4]}, not just {name!r}")
    at = ttir.index(f"tt.func public @{name}(") + len(f"tt.func public @{name}(")
    depth, parts, begin = 0, [], at
    for i in range(at, len(ttir)):
        c = ttir[i]
        if depth == 0 and c in ",)":
            parts.append(ttir[begin:i].strip())
            begin = i + 1
            if c == ")":
                break
        depth += (c in "<({[") - (c in ">)}]")
    else:
        raise PlanError("the TTIR's function has no end of its parameters")
    found = []
    for part in filter(None, parts):
        check(len(part) < 2048, "a parameter of the TTIR's function is too long")
        match = re.fullmatch(r"%[\w.$-]+: (\S+?(?:<.*?>+)?)(?: \{([^}]*)\})?(?: loc\(.*\))?", part)
        check(match is not None, f"cannot read the parameter {part[:80]!r}")
        divisor = re.search(r"tt\.divisibility = (\d+)", match[2] or "")
        found.append((one_descriptor(match[1]), int(divisor[1]) if divisor else 1))
    return found


def one_descriptor(ty: str) -> str:
    """A descriptor's type as triton 3.8 writes it, also where 3.6 did."""
    return re.sub(r"^!tt\.tensordesc<tensor<(.*)>>$", r"!tt.tensordesc<\1>", ty)


def flatten(name: str, ty: Any, value: Any, place: Place) -> list[tuple[str, int]]:
    """[(TTIR type, the number that divisibility is about)] of one recorded argument; a descriptor is several."""
    check(type(ty) is str and len(ty) < 128, f"{name}: an argument's type is a short string")
    if ty.startswith("tensordesc<"):
        return _descriptor(name, ty, value, place)
    if ty[:1] == "*":
        return [(f"!tt.ptr<{_element(ty)}>", place(value)[0])]
    want = SCALARS.get(_signless(ty))
    check(want is not None, f"{name}: unknown argument type {ty!r}")
    if want[0] == "i":
        bits = int(want[1:])
        check(type(value) in (int, bool) and -(2**bits) < value < 2**bits, f"{name}: {value!r} is no {ty}")
        return [(want, int(value))]
    check(type(value) is float or value in ("inf", "-inf", "nan"), f"{name}: {value!r} is no {ty}")
    return [(want, 0)]


def _descriptor(name: str, ty: str, value: Any, place: Place) -> list[tuple[str, int]]:
    """[tensor id, shape, strides, padding "zero" | "nan"] -> the block descriptor, then shape (i32) and strides (i64)."""
    match = re.match(r"tensordesc<(\w+)\[([\d, ]+)\]", ty)
    check(match is not None, f"{name}: unknown descriptor type {ty!r}")
    base, shape, strides, padding = value
    block, (start, itemsize, nbytes) = [int(n) for n in match[2].split(",")], place(base)
    check(
        len(shape) == len(strides) == len(block) <= 5 and padding in ("zero", "nan"),
        f"{name}: malformed descriptor",
    )
    check(
        all(type(n) is int and 0 < n < 2**31 for n in shape)
        and all(type(s) is int and 0 <= s < 2**48 for s in strides),
        f"{name}: malformed descriptor",
    )
    end = start + (1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))) * itemsize
    check(end <= nbytes, f"{name}: a descriptor leaves its storage")
    element, dims = _element("*" + match[1]), "x".join(str(n) for n in block)
    return [
        (f"!tt.tensordesc<{dims}x{element}>", start),
        *[("i32", n) for n in shape],
        *[("i64", s) for s in strides],
    ]


def _signless(ty: str) -> str:
    return re.sub(r"^u(\d)", r"i\1", ty)


def _element(pointer: str) -> str:
    """TTIR's element type of Triton's pointer type: "*kfp16" -> "f16", "**i8" -> "!tt.ptr<i8>"."""
    inner = pointer[1:].removeprefix("k")
    if inner[:1] == "*":
        return f"!tt.ptr<{_element(inner)}>"
    check(_signless(inner) in SCALARS, f"unknown pointer type {pointer!r}")
    return SCALARS[_signless(inner)]
