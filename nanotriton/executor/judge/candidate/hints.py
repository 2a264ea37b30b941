"""What to change, at the end of a verdict's message, where an error has a look of its own."""

import re

from nanotriton.plan.aten import tensor_ids
from nanotriton.plan.plan import Aten, Launch, Plan
from nanotriton.verdict import Fault, HoleFault, ValueFault

TF32 = '; it looks like reduced precision: tl.dot is TF32 unless it is given input_precision="ieee"'
CANCELLED = (
    "; so small an error comes of numbers that cancel (a variance as E[x^2] - E[x]^2: sum (x - mean)^2"
    " instead), of a sum kept in a coarser type, or of a fast approximation"
)
OVERFLOWN = (
    "; exp is infinite above 88 in fp32 (subtract the maximum first), and so are log and a division at 0"
    " (add an eps)"
)
DIVIDED = "; 0 / 0 and the root of a negative number are NaN, and x / 0 is infinite (add an eps)"
UNWRITTEN = "; {count} of them are what no kernel stores to: check the grid and the masks of the stores"
OUTSIDE = "; mask what lies beyond a tensor's end, and check the strides"
ELSEWHERE = "; where every element is outside a mask is no help: see what the offsets are multiplied by"
RACING = "; let each program store to elements of its own, or add with tl.atomic_add"
UNUSED = "; nothing reads {what}"
STRIDED = "; inputs[{number}] has shape {shape} and strides {stride}: use its strides, or .contiguous()"
PADDED = "; beside the formula, see that lanes beyond a mask hold 0 in tl.sum and -inf in tl.max"
# the name of a function's parameter in TTIR, where it is declared
PARAMETER = re.compile(r"%([\w$.-]+): ")
BODY = "{noinline = false} {"  # what ends the line of a function's parameters
REDUCED = re.compile(r'"tt\.reduce"')
MASKED = re.compile(r"tt\.load %[\w#]+, %")
EVERY = re.compile(r"\ball \d+ elements out of bounds")


def hinted(fault: Fault, plan: Plan) -> Fault:
    """The same fault. If it looks like a mistake that many make, its message ends with what to do.

    plan: what the candidate ran. It shows what its kernels do, and what they are given.
    """
    if isinstance(fault, ValueFault):
        fault.message += _wrong(fault, plan)
    elif isinstance(fault, HoleFault) and fault.unwritten:
        fault.message += UNWRITTEN.format(count=fault.unwritten)
    elif isinstance(fault, HoleFault):
        fault.message += OVERFLOWN if _runs(plan, "math.exp") else DIVIDED
    elif fault.status == "out_of_bounds":
        fault.message += ELSEWHERE if EVERY.search(fault.message) else OUTSIDE
    elif fault.status == "nondeterministic":
        fault.message += RACING
    return fault


def _wrong(fault: ValueFault, plan: Plan) -> str:
    """What may make values wrong, the most certain first."""
    if unused := _unused(plan):
        return UNUSED.format(what=" and ".join(unused[:3]))
    if fault.reduced:
        return TF32 if _runs(plan, "inputPrecision = tf32") else CANCELLED
    if "values differ" not in fault.message:  # it says what is odd about all values together
        return ""
    for number, tensor in enumerate(tensor_ids(plan.inputs)):
        meta = plan.meta(tensor)
        if not meta.is_contiguous():
            return STRIDED.format(number=number, shape=tuple(meta.shape), stride=meta.stride())
    if any(REDUCED.search(kernel.ttir) and MASKED.search(kernel.ttir) for kernel in plan.kernels):
        return PADDED
    return ""


def _unused(plan: Plan) -> list[str]:
    """Inputs, and weights by their names, that no step reads and that are no part of the answer."""
    used = {plan.tensors[t].storage for t in plan.output_tensors()}
    for call in [*plan.every_call(), *plan.tuning_calls()]:
        read = tensor_ids([call.args, call.kwargs]) if isinstance(call, Aten) else _read(plan, call)
        used |= {plan.tensors[t].storage for t in read}
    inputs = [(f"inputs[{n}]", t) for n, t in enumerate(tensor_ids(plan.inputs))]
    weights = [(weight.names[0], weight.tensor) for weight in plan.weights if weight.names]
    return [name for name, t in inputs + weights if plan.tensors[t].storage not in used]


def _read(plan: Plan, launch: Launch) -> list[int]:
    """The tensors that a kernel is given and names in its body."""
    head, _, body = plan.kernels[launch.kernel].bare.partition(BODY)
    names = PARAMETER.findall(head)
    if len(names) != len(launch.args):  # descriptors are several parameters
        return launch.tensors
    found = set(re.findall(r"%([\w$.-]+)", body))
    given = [(name, value) for name, (ty, value) in zip(names, launch.args, strict=True) if ty[0] == "*"]
    return [value for name, value in given if name in found]


def _runs(plan: Plan, text: str) -> bool:
    return any(text in kernel.ttir for kernel in plan.kernels)
