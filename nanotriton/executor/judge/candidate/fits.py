"""Do a candidate's kernels fit on the card? On a CPU nothing else would say so.

A GPU has little shared memory for each program (227 KiB on an H100), and a kernel whose tiles need more does
not start. Only Triton's compiler knows how much a kernel needs. It is asked where the sizes of the tiles
leave a doubt, down to the stage at which it knows, and with the card that candidates are told of.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Generator, Iterator
from dataclasses import asdict

from nanotriton.executor.common.card import DEFAULT
from nanotriton.executor.judge.candidate.job import Job, Spawn, check_ended
from nanotriton.executor.sandbox.protocol import Ended
from nanotriton.executor.sandbox.sandbox import Limits
from nanotriton.plan.plan import Kernel, Launch, Plan
from nanotriton.verdict import Fault

BITS = {"i1": 8, "ptr": 64}  # of an element; of other types their name says it
KEPT = 512  # kernels whose answer is remembered
# operations that hand elements from one thread to another, through shared memory
EXCHANGES = re.compile(
    r"\btt\.(?:dot|dot_scaled|reduce|scan|trans|reshape|gather|histogram|join|split|cat|descriptor_\w+)\b"
)
_DOT = re.compile(r"tt\.dot(?:_scaled)? .*?: (tensor<\S+>).*?\* (tensor<[^>]+>)")
_TENSOR = re.compile(r"tensor<((?:\d+x)+)(?:!tt\.(ptr)<[^>]*>|(\w+))>")
_STAGES = re.compile(r"tt\.num_stages = (\d+)")


class Fits:
    """Asks the compile servers whether kernels fit, and remembers the answers: None, or the refusal."""

    def __init__(self) -> None:
        self.known: OrderedDict[str, str | None] = OrderedDict()

    def check(self, job: Job, worker, plans: list[Plan]) -> Generator[Spawn, Ended, None]:
        """Raise Fault if a kernel that is launched in any case does not fit.

        Of an autotuned kernel the tuner would take another configuration, which was not recorded.
        """
        for kernel in {kernel.key: kernel for plan in plans for kernel in always_launched(plan)}.values():
            if not doubtful(kernel):
                continue
            if kernel.key not in self.known:
                self.known[kernel.key] = yield from refusal(job, worker, kernel)
            while len(self.known) > KEPT:
                self.known.popitem(last=False)
            if message := self.known.get(kernel.key):
                raise Fault("out_of_resources", message)


def always_launched(plan: Plan) -> Iterator[Kernel]:
    for step in plan.steps:
        if isinstance(step, Launch):
            yield plan.kernels[step.kernel]


def doubtful(kernel: Kernel) -> bool:
    """Whether a kernel may need more shared memory than there is, by the sizes of its tensors.

    A loop that multiplies has the operands of so many iterations there as it has stages. Else a tensor is
    there once, while its elements change places. Both are estimates, with room to spare.
    """
    text = kernel.bare
    limit = DEFAULT.shared_memory_per_block_optin
    stages = max([kernel.options.get("num_stages") or 3, *map(int, _STAGES.findall(text))])
    operands = sum(size_of(a) + size_of(b) for a, b in _DOT.findall(text))
    if max(1, stages) * operands > limit:
        return True
    largest = max((size_of(match[0]) for match in _TENSOR.finditer(text)), default=0)
    return 2 * largest > limit and EXCHANGES.search(text) is not None


def size_of(tensor: str) -> int:
    """Bytes of `tensor<64x64xf32>`."""
    match = _TENSOR.match(tensor)
    if match is None:
        return 0
    count = math.prod(int(n) for n in match[1].split("x")[:-1])
    elem = match[2] or match[3]
    bits = BITS.get(elem) or int((re.findall(r"\d+", elem) or ["32"])[0])
    return count * bits // 8


def refusal(job: Job, worker, kernel: Kernel) -> Generator[Spawn, Ended, str | None]:
    """Why the card has no room for a kernel. None: it has, or the compiler does not say."""
    limits = Limits(job.timeout, job.memory, output=1 << 20, files=512)
    args = {
        "name": kernel.name,
        "ttir": kernel.ttir,
        "options": kernel.options,
        "card": asdict(DEFAULT),
        "resources_only": True,
    }
    ended = yield Spawn("compile", args, limits)
    worker.add_child("compile", ended)
    try:
        check_ended(ended, limits)
    except Fault as fault:
        return fault.message if fault.status == "out_of_resources" else None
    return None
