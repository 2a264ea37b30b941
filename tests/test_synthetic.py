"""The synthetic grammar: deterministic, disjoint by composition, fair; its solutions pass the judge, and near misses don't."""

import ast
import random
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from nanotriton.tasks import synthetic
from nanotriton.tasks.grammar import OPERANDS, OPS
from nanotriton.tasks.synthetic import INDEX, SPLITS, generate, is_fair, render, split_of
from nanotriton.tasks.task import Task, check_source

BY_NAME = {op.name: op for op in OPS}


@pytest.fixture(scope="module")
def tasks():
    """A few hundred tasks of every split, over two seeds and both sizes."""
    return {s: generate(s, 200, 0) + generate(s, 100, 1) + generate(s, 50, 0, "gpu") for s in SPLITS}


def chain(text):
    """ "mul 3, relu" -> the chain of these operations with these constants."""
    return [(BY_NAME[name], c) for name, _, c in (step.strip().partition(" ") for step in text.split(","))]


def sizes_of(task):
    return {name: int(value) for name, value in re.findall(r"^(\w+) = (\d+)$", task.source, re.M)}


def run_module(source):
    """The answer of a task's own Model to its own inputs, run as a file."""
    names = {}
    exec(compile(source, "task", "exec"), names)
    torch.manual_seed(0)
    with torch.no_grad():
        return names["Model"](*names["get_init_inputs"]())(*names["get_inputs"]())


def test_same_arguments_same_tasks_and_other_seeds_others():
    first, again, other = generate("rl", 40, 3), generate("rl", 40, 3), generate("rl", 40, 4)
    assert first == again and [t.meta for t in first] == [t.meta for t in again]
    assert len({t.source for t in first}) == 40
    assert len({t.source for t in first} & {t.source for t in other}) <= 2
    assert generate("rl", 10, 3) == first[:10]  # a longer list begins with the shorter one


def test_global_random_state_is_neither_used_nor_moved():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = generate("sft", 5, 0)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(2)
    assert generate("sft", 5, 0) == first


@pytest.mark.parametrize("arguments", [("train", 1, 0), ("sft", 1, 0, "tpu")])
def test_unknown_split_or_size_is_an_error_that_names_the_known(arguments):
    with pytest.raises(ValueError, match=r"splits are sft, rl, dev, test; sizes are cpu, gpu"):
        generate(*arguments)


def test_splits_are_disjoint_by_composition(tasks):
    compositions = {s: {tuple(t.meta["ops"]) for t in tasks[s]} for s in SPLITS}
    pairs = {s: {p for ops in compositions[s] for p in pairwise(ops)} for s in SPLITS}
    for i, a in enumerate(SPLITS):
        for b in SPLITS[i + 1 :]:
            assert not compositions[a] & compositions[b], (a, b)
    trained = pairs["sft"] | pairs["rl"]
    held_out = {p: split_of(p) for s in SPLITS for p in pairs[s] if split_of(p) in ("dev", "test")}
    assert not trained & held_out.keys()
    for split, other in (("dev", "test"), ("test", "dev")):
        for ops in compositions[split]:
            kinds = [held_out.get(p) for p in pairwise(ops)]
            assert split in kinds and other not in kinds, ops


def test_an_eighth_of_all_pairs_is_held_out_and_no_operation_is_spared():
    names = [op.name for op in OPS]
    held = {(a, b): split_of([a, b]) for a in names for b in names if split_of([a, b]) in ("dev", "test")}
    assert 0.12 <= len(held) / len(names) ** 2 <= 0.14
    for split in ("dev", "test"):
        for side in (0, 1):
            assert {pair[side] for pair, s in held.items() if s == split} == set(names)


def test_a_chain_with_both_kinds_of_held_out_pairs_belongs_nowhere():
    following = {s: {a: b for a in INDEX for b in INDEX if split_of([a, b]) == s} for s in ("dev", "test")}
    assert split_of(["relu", following["dev"]["relu"]]) == "dev"
    middle = following["dev"]["relu"]
    assert split_of(["relu", middle, following["test"][middle]]) is None


def test_every_operation_is_trained_on_and_tested(tasks):
    for split in SPLITS:
        used = {op for t in tasks[split] for op in t.meta["ops"]}
        assert len(used) >= len(OPS) - 3, (split, set(INDEX) - used)


@pytest.mark.parametrize(
    "text",
    [
        "abs, relu",  # relu does nothing
        "add 2, softmax",  # softmax does not see it
        "centre, layer_norm",
        "softmax, sum",  # always 1
        "layer_norm, mean",  # always 0
        "at_least 1, at_most 0.1",  # constant
        "max_y, max_y",  # the second does nothing
        "neg, neg",  # the input
        "square, mul_y, square, cos",  # rounding decides
    ],
)
def test_unfair_questions_are_not_asked(text):
    assert not is_fair(chain(text))


@pytest.mark.parametrize(
    "text", ["relu", "mul 3, softmax", "matmul, bias, gelu", "scale, square, mean", "norm, add 1, sin"]
)
def test_fair_questions_are_asked(text):
    assert is_fair(chain(text))


def test_tasks_are_whole_kernelbench_files_with_tame_answers(tasks):
    for task in (t for s in SPLITS for t in tasks[s][::10]):
        check_source(task.source, task.name)
        if max(sizes_of(task).values()) > 100:
            continue  # GPU sizes
        answer = run_module(task.source)
        assert answer.dtype == torch.float32 and answer.isfinite().all()
        assert answer.std() > 1e-3 * answer.square().mean().sqrt() > 0, task.meta


@pytest.mark.parametrize(("size", "most", "most_tiled"), [("cpu", 100, 48), ("gpu", 8000, 2000)])
def test_sizes_need_masks_and_stay_in_their_limits(size, most, most_tiled):
    for task in generate("rl", 60, 5, size):
        sizes = sizes_of(task)
        tiled = task.meta["ops"][0] == "matmul"
        assert list(sizes) == (["rows", "inner", "cols"] if tiled else ["rows", "cols"])
        assert max(sizes.values()) <= (most_tiled if tiled else most)
        # so no multiple of any block
        assert sizes["cols"] % 2 and all(n % 2 for n in sizes.values() if tiled)


def test_solutions_are_complete_and_name_every_tensor(tasks):
    for task in (t for s in SPLITS for t in tasks[s][::5]):
        tree = ast.parse(task.solution)
        kernel = next(n for n in tree.body if isinstance(n, ast.FunctionDef))
        assert ast.unparse(kernel.decorator_list[0]) == "triton.jit"
        loaded = {n.id for n in ast.walk(kernel) if isinstance(n, ast.Name)}
        assert {a.arg for a in kernel.args.args} <= loaded  # no argument is unused
        used = [name for name in OPERANDS if any(BY_NAME[op].operand == name for op in task.meta["ops"])]
        assert {f"{name}_ptr" for name in used} <= loaded


def test_the_example_for_the_laptops_model_has_the_grammars_form():
    """A model of the grammar reads nothing else, so a new form of its tasks needs a new example and docs/laptop.md."""
    example = Path(__file__).parents[1] / "docs" / "examples" / "laptop_task.py"
    source, _ = render(chain("add_y, silu, softmax"), {"rows": 16, "cols": 64}, block=16)
    assert example.read_text() == source


def test_constants_come_from_the_table(tasks):
    for task in tasks["sft"]:
        for op, constant in zip(task.meta["ops"], task.meta["constants"]):
            assert constant in (BY_NAME[op].constants or ("",))


def test_table_is_sound():
    assert len(INDEX) == len(OPS), "a name occurs twice"
    for op in OPS:
        assert op.kind in ("map", "row", "reduce", "matmul") and (not op.operand or op.operand in OPERANDS)
        assert ("{c}" in op.torch) == bool(op.constants) == any("{c}" in line for line in op.triton)
        alone = [(op, op.constants[0] if op.constants else "")]
        assert synthetic._run(alone, torch.float32).isfinite().all()


# ---- with the executor ----


@pytest.fixture
def executor(executors):
    return executors()


def test_every_solution_is_correct_and_the_judge_can_tell(executor):
    """Also: no task is weak (zeros, a constant or an input would pass)."""
    futures = [(task, executor.submit(task, task.solution)) for s in SPLITS for task in generate(s, 8, 2)]
    for task, future in futures:
        assert future.result().status == "correct", (task.meta, future.result())


@pytest.mark.slow
def test_no_function_before_a_norm_loses_what_the_judge_asks_for(executor):
    """A norm brings up what a row of small numbers is left with. By the draws of the grammar a pair may be rare."""
    sizes, futures = {"rows": 5, "cols": 49}, []
    for norm in ("rms_norm", "layer_norm", "normalize"):
        for op in OPS:
            chain = [(op, (op.constants or ("",))[0]), (BY_NAME[norm], "")]
            if op.kind == "map" and not op.operand and is_fair(chain):
                source, solution = synthetic.render(chain, sizes, 16)
                futures.append((op, norm, executor.submit(Task(f"{op.name}, {norm}", source), solution)))
    assert len(futures) > 50
    wrong = [
        (op.name, norm, future.result().message)
        for op, norm, future in futures
        if not future.result().correct
    ]
    assert wrong == []


def lines_of(steps):
    return "\n    ".join(line.format(c=c) for op, c in steps for line in op.triton)


def near_misses(task, rng):
    """(what was done, solution) where a constant is another, an operation is dropped or another, or two are swapped, and it matters."""
    right = [(BY_NAME[name], c) for name, c in zip(task.meta["ops"], task.meta["constants"])]
    wrong = []
    for i, (op, c) in enumerate(right):
        before, after = right[:i], right[i + 1 :]
        wrong += [("constant", [*before, (op, other), *after]) for other in op.constants if other != c]
        if op.kind in ("map", "row"):
            other = rng.choice(
                [o for o in OPS if o.kind == "map" and not o.operand and not o.constants and o is not op]
            )
            wrong += [("dropped", before + after), ("other", [*before, (other, ""), *after])]
        if after and {op.kind, after[0][0].kind} <= {"map", "row"}:
            wrong.append(("swapped", [*before, after[0], (op, c), *after[1:]]))
    exact = synthetic._run(right, torch.float64)[0]
    for what, steps in wrong:
        answer = synthetic._run(steps, torch.float64)[0]
        if answer.shape == exact.shape and (answer - exact).square().mean() > 4e-4 * exact.square().mean():
            assert task.solution.count(lines_of(right)) == 1
            yield what, task.solution.replace(lines_of(right), lines_of(steps))


def test_near_misses_are_wrong(executor):
    rng = random.Random(0)
    futures = {"constant": [], "dropped": [], "other": [], "swapped": []}
    for task in generate("dev", 12, 2) + generate("rl", 12, 2):
        for what, source in near_misses(task, rng):
            if len(futures[what]) < 6:
                futures[what].append((task, executor.submit(task, source)))
    for what, found in futures.items():
        assert len(found) == 6
        for task, future in found:
            assert future.result().status == "wrong_value", (what, task.meta, future.result())
