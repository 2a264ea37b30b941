"""A task's module, built as a candidate is built, and its weights."""

import torch

from nanotriton.executor.common import construct
from nanotriton.executor.common.training import train_
from nanotriton.executor.judge.inputs.kinds import has_other_numbers, untrained
from nanotriton.executor.judge.reference.findings import Findings
from nanotriton.executor.judge.reference.inputs import Inputs
from nanotriton.executor.judge.task.code import Code
from nanotriton.plan import wire
from nanotriton.plan.plan import digest
from nanotriton.plan.trees import mapped
from nanotriton.verdict import TaskFault

LARGE = 1 << 20  # bytes of a weight that is sent only if it differs from the reference's
BUILT = 3  # modules of a task that are kept: a candidate has two, and timing may want another
# Of a small task, with so many bytes of weights in all of them, more are kept: those of a candidate's further
# calls, which the next one with the same draw needs too.
MORE_BUILT, SMALL_WEIGHTS = 8, 16 << 20


class Modules:
    """Builds the module of one task. What stands for its weights is a seed (kinds.Trial).

    code: of the task. findings: say what is moved and what is trained. inputs: give lazy layers their shapes.
    """

    def __init__(self, code: Code, findings: Findings, inputs: Inputs):
        self.code, self.findings, self.inputs = code, findings, inputs
        self.built: dict[int, torch.nn.Module] = {}  # the last few, by seed, on the CPU
        self.digests: dict[int, dict[str, torch.Tensor]] = {}  # and their large weights, by hash

    def build(self, seed: int) -> torch.nn.Module:
        """The reference, constructed as a candidate is: on the CPU, same seed, same moved constants.

        A copy goes to its device, which pulls weights apart that share memory.
        """
        host, device = self.on_host(seed), self.code.device
        stays = device.type == "cpu" and not construct.shares_memory(host)
        return construct.copied(host, None if stays else construct.replicas(host, device))

    def weights(self, seed: int) -> dict[str, torch.Tensor]:
        """The module's state, on the CPU: a kernel that writes where it should not can't reach it there."""
        return dict(self.on_host(seed).state_dict())

    def large_weights(self, seed: int) -> dict[str, torch.Tensor]:
        """Weights of a megabyte or more, by plan.digest of their bytes.

        A candidate that has the same need not send them.
        """
        if not self.findings.has_weights:
            return {}
        if seed not in self.digests:
            large = [t for t in self.weights(seed).values() if t.nbytes >= LARGE and t.is_contiguous()]
            self.digests[seed] = {digest(wire.raw([t])): t for t in large}
            while len(self.digests) > BUILT:
                del self.digests[next(iter(self.digests))]
        return self.digests[seed]

    def on_host(self, seed: int) -> torch.nn.Module:
        """The module with the weights of this seed, kept on the CPU for the next who asks."""
        if seed not in self.built:
            if untrained(seed) in self.built:  # a copy is quicker than a constructor that draws
                model = construct.copied(self.built[untrained(seed)])
            else:
                model = self.construct(untrained(seed))
            if seed < 0:
                train_(model, untrained(seed), self.findings.trained_with(seed))
            self.built[seed] = model
            size = MORE_BUILT * sum(t.nbytes for t in construct.named_state(model).values())
            while len(self.built) > (MORE_BUILT if size <= SMALL_WEIGHTS else BUILT):
                del self.built[next(iter(self.built))]
        return self.built[seed]

    def construct(self, seed: int) -> torch.nn.Module:
        """The module as its constructor leaves it, with moved constants."""
        moved = construct.moved_constants(seed, found=self.findings.moved_buffers)
        # no graph: it can't be copied
        with self.code.active(), torch.no_grad(), moved as settled:
            arguments = self.init_arguments(seed)
            construct.seed_everything(seed)
            model = self.code.names["Model"](*arguments)
            if construct.is_unfinished(model):
                self.finish_lazy(model)
            return settled(model)

    def finish_lazy(self, model: torch.nn.Module) -> None:
        """Give lazy layers the weights that they would draw if they had been given their shapes at once."""
        states = construct.generator_states()
        inputs = mapped(self.inputs.given("plain", 0), lambda t: t.cpu())
        construct.set_generators(states)
        construct.finish_lazy(model, lambda: model(*inputs))
        if construct.is_unfinished(model):
            raise TaskFault("unsupported", "forward does not call a lazy layer of the module")

    def init_arguments(self, weights: int) -> list:
        """The constructor's arguments for these weights, by their seed."""
        with self.code.active():
            construct.seed_everything(untrained(weights))
            given = self.code.arguments("get_init_inputs")
        return self.findings.moves.of_init(given) if has_other_numbers(weights) else given

    def forget(self) -> None:
        self.built.clear()
        self.digests.clear()
