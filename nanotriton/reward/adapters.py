"""The executor as the reward of other people's trainers: TRL's and verl's.

TRL (its page "GRPO Trainer", custom reward functions). The data set has a column `task` beside `prompt`,
with a task's text or the path of its file:

    GRPOTrainer(model, reward_funcs=trl_reward(), train_dataset=dataset, args=args)

verl (its page "Implement Reward Function for Dataset"). The same stands in `reward_model.ground_truth`:

    custom_reward_function.path=.../nanotriton/reward/adapters.py custom_reward_function.name=verl_score

Both take a reward file of your own (train_grpo.py's --reward) and the Executor's options: in TRL as
trl_reward("my_reward.py", device="cuda"), in verl as custom_reward_function.reward_kwargs.device=cuda.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from nanotriton.library import as_task, shared_executor
from nanotriton.options import RewardOptions
from nanotriton.reward.reward import reward_function, total
from nanotriton.rules.extract import extract_candidate
from nanotriton.verdict import Verdict


def trl_reward(reward: str = "", **options: Any) -> Callable[..., list[float | None]]:
    """A reward function for TRL's GRPOTrainer.

    A sample that says nothing of the model, because the executor or the task failed, has no reward: TRL
    leaves it out of its group's mean and gives it no advantage. The answers to one task in one batch are
    judged on the same inputs. Judged on a GPU, they get the memory that the trainer's torch keeps unused.
    """
    worth = reward_file(reward)
    batches = itertools.count()

    def triton_reward(completions: Sequence, task: Sequence[str], **columns: Any) -> list[float | None]:
        texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
        if options.get("device", "").startswith("cuda"):
            import torch  # here, as verl's score has no need of it

            torch.cuda.empty_cache()  # else a card that the trainer has filled has no room for the executor
        draw = f"batch {next(batches)}"
        futures = [submit(source, text, options, draw) for source, text in zip(task, texts, strict=True)]
        verdicts = [future.result() for future in futures]
        if "log_extra" in columns:  # a column of TRL's table of completions
            columns["log_extra"]("status", [verdict.status for verdict in verdicts])
        judged = zip(verdicts, texts, task, strict=True)
        return [total(worth(verdict, text, as_task(source))) for verdict, text, source in judged]

    return triton_reward


def verl_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict | None = None,
    reward: str = "",
    unscored: float | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The score of one sample for verl, with the status beside it.

    unscored: the score where the executor or the task failed, which says nothing of the model. verl can't
        leave a sample out of its batch, so without this number a ValueError names the cause.
    """
    verdict = submit(ground_truth, solution_str, options).result()
    score = total(reward_file(reward)(verdict, solution_str, as_task(ground_truth)))
    score = unscored if score is None else score
    if score is None:
        raise ValueError(
            f"a sample of {data_source} has no score ({verdict.status}: {verdict.message}): "
            "take the task out of the data, or set custom_reward_function.reward_kwargs.unscored"
        )
    return {"score": score, "acc": float(verdict.correct), "status": verdict.status}


@functools.cache
def reward_file(path: str) -> Callable:
    """(verdict, completion, task) -> the reward, or None: of a file, or the default."""
    return reward_function(RewardOptions(reward=path))


def submit(task: str, completion: str, options: dict[str, Any], draw: str | None = None) -> Future[Verdict]:
    """The verdict to come on the candidate in a completion. draw: as in Executor.submit."""
    candidate = extract_candidate(completion)
    if candidate is not None:
        return shared_executor(**options).submit(as_task(task), candidate, draw)
    without: Future[Verdict] = Future()
    without.set_result(Verdict("no_code", "extract", "no fenced Python block defines ModelNew"))
    return without
