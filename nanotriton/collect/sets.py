"""The journal's rows sorted into sets: which are SFT pairs, which are RL tasks, which are held out.

A module that two routes solved gives two pairs, the composed one first. It is an RL task only if no route
solved it.
"""

from collections import Counter

from nanotriton.collect.fingerprint import canonical, digest
from nanotriton.collect.pairs import pair
from nanotriton.collect.sources import elements, fitted

# with one of these verdicts a module without a solution is no RL task either
UNFAIR = (
    "weak_task",
    "unsupported",
    "infra_error",
    "memory_limit",
    "nondeterministic",
)


def is_pair(row: dict) -> bool:
    return row["status"] == "kept" and row["split"] == "train"


def is_rl(row: dict) -> bool:
    return row["status"] == "task" and row["split"] == "train"


def may_be_pair(row: dict) -> bool:
    """A pair, or what --verify later leaves to be verified elsewhere: a run counts it as one."""
    return is_pair(row) or (row["status"] == "emitted" and row["split"] == "train" and bool(row["solution"]))


def may_be_rl(row: dict) -> bool:
    return is_rl(row) or (row["status"] == "emitted" and row["split"] == "train" and not row["solution"])


def sort(rows: list[dict], share: float, reasoning: bool, most: int = 0) -> tuple[dict, list[dict]]:
    """({"sft": ..., "rl": ..., "heldout": ...} as lines of the files, the rows behind those of sft).

    rows: of the journal, in the order of jobs. share: see `capped`.
    most: elements of an RL task, 0: as many as it has.
    """
    pairs = [row for row in rows if is_pair(row)]
    chosen = capped(pairs, share)
    solved = {module_of(row) for row in rows if row["status"] == "kept"}
    open_ = {module_of(row): row for row in reversed(rows) if row["status"] == "task"}
    tasks = [row for row in reversed(open_.values()) if module_of(row) not in solved]
    heldout = [row for row in rows if row["status"] == "kept" and row["split"] != "train"]
    heldout += [row for row in tasks if row["split"] != "train"]
    once = {module_of(row): row for row in reversed(heldout)}
    kept = {
        "sft": [pair(row, reasoning) for row in chosen],
        "rl": [task for row in tasks if is_rl(row) and (task := rl_task(row, most))],
        "heldout": [
            task | {"split": row["split"]} for row in reversed(once.values()) if (task := rl_task(row, most))
        ],
    }
    return kept, chosen


def module_of(row: dict) -> str:
    """What a module is known by, whichever route went over it."""
    return row.get("module") or row["meta"].get("draw") or digest(row["source"])


def rl_task(row: dict, most: int) -> dict | None:
    """A line of rl.jsonl. Its sizes are brought down, since it is judged hundreds of times. None if they
    stay ten times too large, because they stand inside the module.
    """
    source = fitted(row["source"], most) if most else row["source"]
    if most and elements(source) > 10 * most:
        return None
    return {"name": row["key"], "task": source, "meta": row["meta"]}


def operators_of(row: dict) -> set[str]:
    return {canonical(name) for name in row["meta"].get("operators", [])}


def capped(rows: list[dict], share: float) -> list[dict]:
    """As many of these rows as may be, such that no operator is in more than `share` of those that are kept
    (and none is lost altogether: one row of an operator is always allowed). They stay in order.

    A row with commoner operators goes before one with rarer ones. 1: all rows.
    """
    if share >= 1:
        return rows
    operators = [operators_of(row) for row in rows]
    count = Counter(name for names in operators for name in names)
    commonest = [max((count[name] for name in names), default=0) for names in operators]
    # Rows that are as common as each other go by hash, so that no part of the list is favoured.
    order = sorted(range(len(rows)), key=lambda i: (commonest[i], digest(rows[i]["key"])))
    few = 0
    many = len(rows)
    best = []
    while few <= many:
        size = (few + many) // 2
        found = within(order, operators, max(int(share * size), 1))
        if len(found) >= size:
            few, best = size + 1, found
        else:
            many = size - 1
    return [rows[i] for i in sorted(best)]


def within(order: list[int], operators: list[set[str]], most: int) -> list[int]:
    """The rows of `order`, first come first served, such that each operator is in at most `most` of them."""
    count: Counter = Counter()
    found = []
    for i in order:
        if all(count[name] < most for name in operators[i]):
            count.update(operators[i])
            found.append(i)
    return found
