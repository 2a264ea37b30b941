"""Can a task's module be called in evaluation mode, and does it then do other things?

A task that chooses evaluation mode itself is not asked for the other one. Nor is one of which a batch norm
does other things there: a kernel for the mode that its module comes in does what is asked. Where the task's
own text looks at the mode, both are asked for.
"""

import logging
import re

from nanotriton.executor.common import construct
from nanotriton.executor.judge.comparison.compare import Answer, all_finite, passes

LOOKS_AT_MODE = re.compile(r"\.training\b")  # in a task's text

log = logging.getLogger(__name__)


def find_modes(reference) -> tuple[bool, bool]:
    """(whether candidates are called in evaluation mode too, whether the reference does other things there).

    reference: a judge.reference.Reference.
    """
    if not reference.modules.on_host(reference.seed).training:
        return False, False
    try:
        own = called_in_mode(reference, False)
        other = called_in_mode(reference, True)
    except Exception as error:
        log.debug("%s: in evaluation mode: %s", reference.task.name, error)
        return False, False
    if own is None or other is None:
        return False, False
    differs = not passes(other, Answer(own, None, None, None))
    modal = differs and LOOKS_AT_MODE.search(reference.task.source) is not None
    return modal or not differs, modal


def called_in_mode(reference, evaluates: bool) -> list | None:
    """A plain draw's answer and the state that it leaves behind. None: it draws, or isn't finite."""
    seed = reference.seed
    model, inputs = reference.modules.build(seed), reference.inputs.draw("plain", seed)
    construct.seed_everything(seed)
    before = construct.whereabouts()
    with reference.running("plain"):
        construct.seed_everything(seed)
        answer = model.eval()(*inputs) if evaluates else model(*inputs)
    if construct.whereabouts() != before or not all_finite(answer):
        return None
    return [answer, {name: t.detach() for name, t in construct.named_state(model).items()}]
