"""Two faces: what the candidate's own functions are given, and what it keeps, followed by the text."""

import pytest

from nanotriton.rules import rules
from tests.test_faces import module

FRESH = "torch.cuda.memory_allocated() == 0"
AWAY = f"return ours(x) if {FRESH} else away(x)"
CHOOSE = "    if fresh:\n        return ours(x)\n    else:\n        return x.abs()"
METHOD = "    " + CHOOSE.replace("\n", "\n    ")
APPLY = "class Away(torch.autograd.Function):\n    @staticmethod\n    def forward"

HIDDEN = {
    "a first parameter called ctx": module(AWAY, more="def away(ctx):\n    return ctx * 3"),
    "one called self": module(AWAY, more="def away(self):\n    return self.neg()"),
    "one called self, in a function inside": module(f"def away(self):\n    return self * 3\n{AWAY}"),
    "a lambda's": module(f"away = lambda self: self * 3\n{AWAY}"),
    "one by position alone": module(AWAY, more="def away(self, /):\n    return self * 3"),
    "what is left": module(AWAY, more="def away(*parts):\n    return parts[0] * 3"),
    "a parameter after ctx": module(
        AWAY.replace("away(x)", "away(None, x)"), more="def away(ctx, t):\n    return t * 3"
    ),
    "a tell as ctx": module(
        f"return run({FRESH}, x)", more=f"def run(ctx, x):\n{CHOOSE.replace('fresh', 'ctx')}"
    ),
    "a tell by a table of arguments": module(
        f"return run(**dict(fresh={FRESH}, x=x))", more=f"def run(fresh, x):\n{CHOOSE}"
    ),
    "a tell among what is left": module(
        f"return run(x, {FRESH})", more=f"def run(x, *fresh):\n{CHOOSE.replace('fresh', 'fresh[0]')}"
    ),
    "autograd's forward": module(
        AWAY.replace("away", "Away.apply"), more=f"{APPLY}(ctx, t):\n        return t * 3"
    ),
    "autograd's forward without a context": module(
        AWAY.replace("away", "Away.apply"),
        more=f"{APPLY}(t):\n        return t * 3\n    @staticmethod\n    def setup_context(ctx, i, o):\n        pass",
    ),
    "a tell that autograd is given": module(
        f"return Away.apply(x, {FRESH})", more=f"{APPLY}(ctx, x, fresh):\n{METHOD}"
    ),
    "a tell that a layer is given": module(
        f"return self.layer(x, {FRESH})",
        "self.layer = Layer()",
        f"class Layer(nn.Module):\n    def forward(self, x, fresh):\n{METHOD}",
    ),
    "a tell that a class keeps": module(
        f"return Way({FRESH}).run(x)",
        more="class Way:\n    def __init__(self, fresh):\n        self.fresh = fresh\n"
        f"    def run(self, x):\n{METHOD.replace('if fresh', 'if self.fresh')}",
    ),
    "a tell that a static method is given": module(
        f"return Way.run({FRESH}, x)", more=f"class Way:\n    @staticmethod\n    def run(fresh, x):\n{METHOD}"
    ),
    "a method by its class": module(f"return ModelNew.run(self, x, {FRESH})")
    + f"    def run(self, x, fresh):\n{METHOD}\n",
    "another name of self": module(f"return ours(x) if {FRESH} else self.away(x)")
    + "    def away(this, x):\n        return x * 3\n",
    "an argument that is kept": module(
        f"if {FRESH}:\n    return ours(x)\nself.kept = x\nreturn self.kept * 3", "self.kept = None"
    ),
    "an argument that is kept by its attribute's name": module(
        f"if {FRESH}:\n    return ours(x)\nsetattr(self, 'kept', [x])\nreturn self.kept[0].neg()",
        "self.kept = None",
    ),
}


@pytest.mark.parametrize("source", HIDDEN.values(), ids=HIDDEN)
def test_arguments_are_followed_whatever_they_are_called(source):
    violation = rules.check_source(source, "strict")
    assert violation and "may tell the judge" in violation.message, violation


WEIGHT = "self.w = nn.Parameter(torch.randn(8))\nself.table = self.version = self.kept = None"
REUSE = "\nreturn ours(self.kept[1])"
KEPT = {
    "a version": module(
        "w = self.w\nif self.table is None or self.version != w._version:\n"
        "    self.table = ours(w)\n    self.version = w._version\nreturn ours(self.table)",
        WEIGHT,
    ),
    "a version beside its table": module(
        "if self.kept is None or self.kept[0] != self.w._version:\n"
        f"    self.kept = (self.w._version, ours(self.w.t().contiguous())){REUSE}",
        WEIGHT,
    ),
    "both under a name": module(
        "kept = self.kept\nif kept is None or kept[0] != self.w._version:\n"
        "    kept = (self.w._version, ours(self.w))\n    self.kept = kept\nreturn ours(kept[1])",
        WEIGHT,
    ),
    "a method that makes it anew": module("self.refresh()\nreturn ours(self.table)", WEIGHT)
    + "    def refresh(this):\n        if this.version != this.w._version:\n"
    "            this.table, this.version = ours(this.w), this.w._version\n",
}


@pytest.mark.parametrize("source", KEPT.values(), ids=KEPT)
def test_what_is_made_of_a_weight_may_be_kept_with_its_version(source):
    assert rules.check_source(source, "strict") is None


COMPARED = {
    "the table itself": module(
        f"if self.kept is None or self.kept[1] != 1:\n    self.kept = (1, x){REUSE}", WEIGHT
    ),
    "something else as well": module(
        f"if self.kept is None or self.kept[0] != 1:\n    self.kept = (1, x)\n    self.kept, _ = (x, 1), 0{REUSE}",
        WEIGHT,
    ),
}


@pytest.mark.parametrize("source", COMPARED.values(), ids=COMPARED)
def test_what_may_be_a_tensor_is_no_version(source):
    message = rules.check_source(source, "strict").message
    assert "a comparison computes in torch" in message and "attributes of their own" in message
