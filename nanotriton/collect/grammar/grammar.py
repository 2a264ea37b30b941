"""Draws modules in KernelBench's format: single operators (singles.py), a layer and what follows it
(fused.py), and what else GPUs compute: chains of maps, gathers, sorts, integers, optimizer steps,
quantisation.
"""

import random
import re

from nanotriton.collect.grammar.chain import INTEGER_MAPS, MAPS, Chain, maps
from nanotriton.collect.grammar.draft import Draft, Misfit, sizes
from nanotriton.collect.grammar.fused import fused
from nanotriton.collect.grammar.singles import by_name, single
from nanotriton.collect.grammar.steps import (
    CHANNEL_STEPS,
    GATHER_STEPS,
    IMAGES,
    REDUCE_STEPS,
    ROW_STEPS,
    SHAPES,
    SORT_STEPS,
)
from nanotriton.collect.grammar.style import draw_style
from nanotriton.collect.grammar.whole import MIXTURES, OPTIMIZERS, QUANTISATION, whole

LEVELS = {"single": 49, "fused": 37, "mixed": 14}
HARD = {"single": 30, "fused": 45, "mixed": 25}  # of tasks without a solution, for RL
MIXED = {"map": 20, "rows": 22, "channel": 12, "layout": 16, "sort": 5, "integer": 5, "whole": 20}
STEPS = {
    "rows": ROW_STEPS + REDUCE_STEPS,
    "channel": CHANNEL_STEPS,
    "layout": GATHER_STEPS,
    "sort": SORT_STEPS,
}


def draw(rng: random.Random, hard: bool = False) -> Draft:
    """One module, with both sets of sizes. hard: for RL; the same kinds, longer and more mixed."""
    shares = HARD if hard else LEVELS
    while True:
        level = rng.choices(list(shares), list(shares.values()))[0]
        try:
            if level == "single":
                draft = single(rng)
            elif level == "fused":
                draft = fused(rng, (2, 4) if hard else (1, 4))
            else:
                draft = mixed(rng)
        except Misfit:
            continue
        draft.style = draw_style(rng)
        draft.sizes = sizes(rng, draft)
        return draft


def mixed(rng: random.Random) -> Draft:
    family = rng.choices(list(MIXED), list(MIXED.values()))[0]
    if family == "integer":
        return integers(rng)
    if family == "whole":
        return whole(rng, OPTIMIZERS + QUANTISATION + MIXTURES)
    return chain(rng, family)


def chain(rng: random.Random, family: str) -> Draft:
    """x -> maybe maps -> the family's step -> maps."""
    if family == "map":
        made = Chain(rng, family, rng.choice(("matrix", "sequence", *IMAGES)))
        maps(made, rng.randint(2, 4))
        return finish(made)
    step = by_name(rng, STEPS[family])
    made = Chain(rng, family, rng.choice(step.kinds))
    if rng.random() < 0.4:
        maps(made, 1)
    made.step(step)
    if not made.ended:
        maps(made, rng.choice((0, 1, 1, 2)))
    if (
        family == "rows"
        and not made.ended
        and len(made.dims) == len(SHAPES[made.kind])
        and rng.random() < 0.3
    ):
        made.step(rng.choice([s for s in ROW_STEPS + REDUCE_STEPS if made.kind in s.kinds]))
    return finish(made)


def finish(made: Chain) -> Draft:
    """Sometimes all inputs are half precision, where nothing has parameters."""
    draft = made.finish()
    plain = not draft.init and draft.family != "sort"
    if plain and made.rng.random() < 0.2:
        draft.dtype = made.rng.choice(("float16", "bfloat16"))
    return draft


def integers(rng: random.Random) -> Draft:
    """Element-wise operators on whole numbers."""
    made = Chain(rng, "integer", rng.choice(("matrix", "sequence")))
    draws = "torch.randint(-1000, 1000, ({}), dtype=torch.int32)"
    made.draft.inputs["x"] = draws.format(", ".join(made.dims))
    for op in rng.sample(INTEGER_MAPS, rng.randint(1, 3)):
        spelling = rng.choice(op.spellings).replace("{c}", rng.choice(op.constants) if op.constants else "")
        if re.search(r"\by\b", spelling):
            made.draft.inputs["y"] = draws.format(", ".join(made.dims))
        made.say(op.name, spelling)
    return made.finish()


def operators() -> set[str]:
    """The names of all element-wise operators, steps and whole modules that can be drawn."""
    from nanotriton.collect.grammar.heads import HEAD_STEPS
    from nanotriton.collect.grammar.loss_modules import LOSSES
    from nanotriton.collect.grammar.singles import BY_HAND, NORMS, REDUCTIONS, SOFTMAXES
    from nanotriton.collect.grammar.steps import SCAN_STEPS
    from nanotriton.collect.grammar.whole import WHOLES

    names = {op.name for op in MAPS + INTEGER_MAPS} | {w.name for w in WHOLES + LOSSES} | {*BY_HAND, *NORMS}
    names |= {*REDUCTIONS, *SOFTMAXES} | {s.name for s in HEAD_STEPS + SCAN_STEPS}
    return names | {s.name for table in STEPS.values() for s in table}
