"""What to change, at the end of a verdict's message, where an error has a look of its own."""

from nanotriton.plan.plan import Plan
from nanotriton.verdict import Fault, ValueFault

TF32 = '; it looks like reduced precision: tl.dot is TF32 unless it is given input_precision="ieee"'
CANCELLED = (
    "; so small an error comes of numbers that cancel (a variance as E[x^2] - E[x]^2: sum (x - mean)^2"
    " instead), of a sum kept in a coarser type, or of a fast approximation"
)
OVERFLOWN = "; exp is infinite above 88 in fp32, and log at 0: subtract the maximum first"
UNWRITTEN = "; what no kernel stores to is NaN here, and so is 0 / 0"
OUTSIDE = "; mask what lies beyond a tensor's end, and check the strides"
RACING = "; let each program store to elements of its own, or add with tl.atomic_add"


def hinted(fault: Fault, plan: Plan) -> Fault:
    """The same fault. If it looks like a mistake that many make, its message ends with what to do.

    plan: what the candidate ran. It shows whether a kernel multiplies in TF32, or calls an exponential.
    """
    if isinstance(fault, ValueFault) and fault.reduced:
        fault.message += TF32 if _runs(plan, "inputPrecision = tf32") else CANCELLED
    elif fault.status == "not_finite":
        fault.message += OVERFLOWN if _runs(plan, "math.exp") else UNWRITTEN
    elif fault.status == "out_of_bounds":
        fault.message += OUTSIDE
    elif fault.status == "nondeterministic":
        fault.message += RACING
    return fault


def _runs(plan: Plan, text: str) -> bool:
    return any(text in kernel.ttir for kernel in plan.kernels)
