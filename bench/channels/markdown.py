"""Parts of the Markdown that benchmarks write."""


def clean(text: str) -> str:
    """A message as one line of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a Markdown table, and an empty one."""
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]
