"""A kept candidate as a line of sft.jsonl."""

from nanotriton.tasks.prompt import USER, build_completion
from nanotriton.tasks.task import Task


def pair(row: dict, reasoning: bool) -> dict:
    """A line of sft.jsonl. `task` is what GRPO's prompt is made of; `prompt` is the same as plain text."""
    answer = build_completion(Task(row["key"], row["source"], row["solution"]))
    text = f"{row['reasoning']}\n\n{answer}" if reasoning and row["reasoning"] else answer
    return {
        "name": row["key"],
        "prompt": USER.format(source=row["source"].strip()),
        "completion": text,
        "task": row["source"],
        "solution": row["solution"],
        "meta": row["meta"],
    }
