"""TRL's GRPOTrainer with nanotriton's executor as its reward.

    python docs/examples/trl_grpo.py MODEL TASKS

MODEL is a Hugging Face folder or hub id; TASKS is a task's file or a folder of them (docs/executor.md).
"""

import sys

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from nanotriton.reward.adapters import trl_reward
from nanotriton.tasks.prompt import SYSTEM, USER
from nanotriton.tasks.task import Task, find_tasks


def row(task: Task) -> dict:
    """A row of the data: the prompt that nanotriton's own models are shown, and the task for the reward."""
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": USER.format(source=task.source.strip())},
    ]
    return {"prompt": messages, "task": task.source}


def make_trainer(model: str, tasks: str, **arguments) -> GRPOTrainer:
    """arguments: GRPOConfig's."""
    found, _ = find_tasks(tasks)
    data = Dataset.from_list([row(task) for task in found])
    args = GRPOConfig(log_completions=True, **arguments)
    return GRPOTrainer(model, reward_funcs=trl_reward(), train_dataset=data, args=args)


if __name__ == "__main__":
    make_trainer(*sys.argv[1:], output_dir="out/trl", num_generations=8, max_completion_length=2048).train()
