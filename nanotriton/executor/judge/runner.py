"""Replay of one plan on the CPU, in the form in which the judge asks for it."""

import torch

from nanotriton.executor.judge.job import Job
from nanotriton.executor.judge.reference import Reference
from nanotriton.executor.replay.replayer import Replay, ReplayError
from nanotriton.plan.aten import tensor_ids
from nanotriton.plan.plan import DTYPES, Plan, Weight
from nanotriton.verdict import Fault, out_of_memory


class Runner:
    """Replays one plan on the CPU, as `judge_trial` wants it: (inputs, weight seed) -> (outputs, {input: what it was changed to})."""

    def __init__(self, worker, job: Job, reference: Reference, plan: Plan, recorded: int):
        self.worker, self.job, self.reference, self.plan, self.recorded = (
            worker,
            job,
            reference,
            plan,
            recorded,
        )
        self.launches = len(plan.launches())
        self.replay = Replay(plan, "cpu", known=reference.large_weights(recorded))
        self.weights: dict[int, dict[str, torch.Tensor]] = {}

    def __call__(
        self, inputs: list, seed: int, skip: int | range | None = None
    ) -> tuple[object, dict[int, torch.Tensor]]:
        weights, ids = self.by_name(seed), tensor_ids(self.plan.inputs)
        with self.worker.stage("run", self.job.timeout):
            try:
                outputs = self.replay.run(inputs, weights, skip_launch=skip)
                changed = {i: self.replay.tensor(ids[i]) for i in self.replay.modified_inputs}
            except ReplayError as error:
                if error.fatal:
                    self.worker.gpu.lost = True
                raise Fault(error.status, str(error)) from None
            except ValueError as error:
                raise Fault("crashed", f"plan: {error}") from None
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                raise Fault("memory_limit", f"it used more than {self.job.memory >> 20} MiB") from None
            finally:
                self.replay.forget()
        return outputs, changed

    def by_name(self, seed: int) -> dict[str, torch.Tensor]:
        """The reference's weights for this seed, if every weight of the plan has a twin there; else none: draw order decides."""
        if seed not in self.weights:
            state = self.reference.weights(seed) if self.plan.weights else {}
            self.weights[seed] = state if all(self.has_twin(w, state) for w in self.plan.weights) else {}
        return self.weights[seed]

    def has_twin(self, weight: Weight, state: dict[str, torch.Tensor]) -> bool:
        twin, own = (
            next((state[n] for n in weight.names if n in state), None),
            self.plan.tensors[weight.tensor],
        )
        return twin is not None and twin.shape == own.shape and twin.dtype == DTYPES[own.dtype]
