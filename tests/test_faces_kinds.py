"""What counts as computing behind a tell, and which states and modes are tells; and what honest modules do beside them."""

import pytest

from nanotriton.plan.facts import Facts
from nanotriton.rules import rules
from tests.candidates import read
from tests.test_faces import module

IN_USE = "torch.cuda.memory_allocated()"

COMPUTING = {
    "an operator": "return x * (x > 0)",
    "operators and methods": "return (x.abs() + x) / 2",
    "a method": "return x.clamp_min(0)",
    "in place": "y = x.clone()\n    y[y < 0] = 0\n    y *= 1\n    return y",
    "a reduction": "return x - x.amin()",
    "a rare function": "return torch.threshold(x, 0, 0)",
    "an index that is a tensor": "return x[torch.argsort(x)]",
    "Python's own": "return max(x, x * 0)",
    "numpy": "import numpy as np\n    return torch.from_numpy(np.maximum(x.numpy(), 0))",
    "an operator's function": "import operator\n    return operator.mul(x, x)",
    "a sum of parts": "return sum(x.unbind())",
    "a helper": "return helper(x)",
    "a helper that is given along": "return list(map(helper, [x]))[0]",
    "a comparison": "return x > 0.5",
    "a lambda": "f = lambda t: t.neg().exp()\n    return f(x)",
    "a comprehension": "return torch.stack([t.sqrt() for t in x])",
    "a layer": "return nn.Threshold(0, 0)(x)",
    "a name of a function": "f = torch.cumsum\n    return f(x, 0)",
    "a method that is named": "f = x.abs\n    return f()",
    "a distribution": "return torch.distributions.Normal(x, 1).cdf(x)",
    "values in Python": "return torch.tensor([max(v, 0.0) for v in x.tolist()])",
}
HELPER = "def helper(t):\n    half = t / 2\n    return half + half.abs()"


@pytest.mark.parametrize("body", COMPUTING.values(), ids=COMPUTING)
def test_all_that_torch_computes_behind_a_tell_counts(body):
    first = module(f"if {IN_USE} == 0:\n    {body}\nreturn ours(x)", more=HELPER)
    indented = body.replace("\n    ", "\n")
    # what is left if one side leaves
    last = module(f"if {IN_USE} > 0:\n    return ours(x)\n{indented}", more=HELPER)
    inner = module(
        f"if x.numel() > 4:\n    if {IN_USE} == 0:\n        {body.replace(chr(10), chr(10) + '    ')}\nreturn ours(x)",
        more=HELPER,
    )
    for source in (first, last, inner):
        violation = rules.check_source(source, "strict")
        assert violation and "computes in torch" in violation.message, violation


TELLS = {
    "evaluation": module("if not self.training:\n    return x.abs()\nreturn ours(x)"),
    "training, in a module that leaves it": module(
        "if self.training:\n    return x.abs()\nreturn ours(x)", "self.eval()"
    ),
    "gradients": module("if torch.is_grad_enabled():\n    return x.abs()\nreturn ours(x)"),
    "gradients by a name": module(
        "if grads():\n    return x.abs()\nreturn ours(x)", more="from torch import is_grad_enabled as grads"
    ),
    "gradients, made by itself": module(
        "with torch.enable_grad():\n    if not torch.is_grad_enabled():\n        return x.abs()\nreturn ours(x)"
    ),
    "a tensor's gradients": module("return x.abs() if x.requires_grad else ours(x)"),
    "inference": module(
        "if torch.is_inference_mode_enabled() or x.is_inference():\n    return x.abs()\nreturn ours(x)"
    ),
    "the rest in evaluation": module("if self.training:\n    return ours(x)\nreturn x.abs()"),
    "a mode or a shape": module(
        "if torch.is_grad_enabled() or x.numel() == 0:\n    return x.abs()\nreturn ours(x)"
    ),
    "an address's last bits": module("if x.data_ptr() % 256:\n    return x.abs()\nreturn ours(x)"),
    "a list that gets shorter": module(
        "if not self.left:\n    return x.abs()\ndel self.left[0]\nreturn ours(x)", "self.left = [1, 1]"
    ),
    "a slice": module(
        "if not self.left:\n    return x.abs()\nself.left = self.left[1:]\nreturn ours(x)",
        "self.left = (1, 1)",
    ),
    "flags that follow each other": module(
        "if self.late:\n    return x.abs()\nself.late = self.soon\nself.soon = True\nreturn ours(x)",
        "self.late = self.soon = False",
    ),
    "an iterator": module(
        "for late in self.lates:\n    break\nif late:\n    return x.abs()\nreturn ours(x)",
        "self.lates = iter([False, False, True])",
    ),
    "a generator": module(
        "late, = [v for v in [next(LATES)]]\nif late:\n    return x.abs()\nreturn ours(x)",
        more="def lates():\n    yield from [False, False, True]\nLATES = lates()",
    ),
    "the shape of a buffer": module(
        "if self.z.shape[0] > 2:\n    return x.abs()\nself.z = torch.empty(self.z.shape[0] + 1)\nreturn ours(x)",
        "self.z = torch.empty(1)",
    ),
    "a module that is added": module(
        "if len(list(self.children())) > 1:\n    return x.abs()\nself.add_module(str(len(list(self.children()))), nn.Identity())\nreturn ours(x)"
    ),
    "another name of a list": module(
        "seen = self.seen\nseen += [1]\nif len(self.seen) > 2:\n    return x.abs()\nreturn ours(x)",
        "self.seen = []",
    ),
    "a list that a function fills": module(
        "note(self.seen)\nif len(self.seen) > 2:\n    return x.abs()\nreturn ours(x)",
        "self.seen = []",
        "def note(seen):\n    seen.append(1)",
    ),
    "a heap": module(
        "if not self.heap:\n    return x.abs()\nheapq.heappop(self.heap)\nreturn ours(x)",
        "self.heap = [1, 2]",
        "import heapq",
    ),
    "an exception of an empty list": module(
        "try:\n    self.left.pop()\nexcept IndexError:\n    return x.abs()\nreturn ours(x)",
        "self.left = [1, 1]",
    ),
    "an exception in a function": module(
        "try:\n    self.step()\nexcept IndexError:\n    return x.abs()\nreturn ours(x)", "self.left = [1, 1]"
    )
    + "\n    def step(self):\n        del self.left[0]\n",
    "an exception that is let go": module(
        "with contextlib.suppress(IndexError):\n    self.left.pop()\n    return ours(x)\nreturn x.abs()",
        "self.left = [1, 1]",
        "import contextlib",
    ),
    "another forward": module(
        "if len(self.seen) == 1:\n    self.forward = self.other\nself.seen.append(1)\nreturn ours(x)",
        "self.seen = []",
    )
    + "\n    def other(self, t):\n        return t.abs()\n",
    "a chain of forwards": module("self.forward = self.second\nreturn ours(x)")
    + "\n    def second(self, t):\n        self.forward = self.third\n        return ours(t)\n\n    def third(self, t):\n        return t.abs()\n",
    "another class": module(
        "self.__class__ = Later\nreturn ours(x)",
        more="class Later(nn.Module):\n    def forward(self, t):\n        return t.abs()",
    ),
    "an object of another class": module(
        "self.way = self.then\nself.then = Later()\nreturn self.way.run(x)",
        "self.way = self.then = Ours()",
        "class Ours:\n    def run(self, t):\n        return ours(t)\nclass Later:\n    def run(self, t):\n        return t.abs()",
    ),
    "functions that run out": module(
        "f = self.ways.pop() if len(self.ways) > 1 else self.ways[0]\nreturn f(x)",
        "self.ways = [torch.cumsum, ours, ours]",
    ),
    "functions of a list of the file's": module(
        "return WAYS.pop(0)(x)", more="WAYS = [ours, ours, torch.erf]"
    ),
    "a table's values": module(
        "self.calls += 1\nreturn list(WAYS.values())[self.calls](x)",
        "self.calls = 0",
        "WAYS = {0: ours, 1: ours, 2: torch.erf}",
    ),
    "a generator of functions": module(
        "return next(self.ways)(x)", "self.ways = ways()", "def ways():\n    yield ours\n    yield torch.erf"
    ),
    "a generator that computes": module(
        "self.x = x\nreturn next(self.answers)",
        "self.answers = answers(self)",
        "def answers(m):\n    yield ours(m.x)\n    while True:\n        yield m.x.abs()",
    ),
    "what a context manager gives": module(
        "with way() as run:\n    return run(x)",
        more="WAYS = [torch.erf, ours, ours]\n@contextlib.contextmanager\ndef way():\n    yield WAYS.pop()\nimport contextlib",
    ),
    "names that move up": module(
        "S.now, S.soon = S.soon, torch.erf\nreturn S.now(x)",
        more="import types\nS = types.SimpleNamespace(now=ours, soon=ours)",
    ),
    "a hook that sets a function": module(
        "return self.run(x)",
        "self.run = ours\nself.ways = [ours, torch.erf]\n"
        "self.register_forward_pre_hook(lambda m, given: setattr(m, 'run', m.ways.pop(0)))",
    ),
    "in a hook": module(
        "return ours(x)",
        "self.register_forward_hook(finish)",
        f"def finish(module, given, answer):\n    if {IN_USE} == 0:\n        return answer.abs()",
    ),
    "in an own layer": module(
        "return self.act(x)",
        "self.act = Act()",
        f"class Act(nn.Module):\n    def forward(self, t):\n        if {IN_USE} == 0:\n            return t.abs()\n        return ours(t)",
    ),
    "an attribute that is there": module(
        "if hasattr(self, 'late'):\n    return x.abs()\nif hasattr(self, 'soon'):\n    self.late = 1\nself.soon = 1\nreturn ours(x)"
    ),
    "a mode by its name": module("if not getattr(self, 'training'):\n    return x.abs()\nreturn ours(x)"),
    "one of two functions": module(
        "return run(x)",
        more=f"if {IN_USE} == 0:\n    def run(t):\n        return ours(t)\nelse:\n    def run(t):\n        return t.abs()",
    ),
    "one of two methods": module("return self.run(x)")
    + f"\n    if {IN_USE} == 0:\n        def run(self, t):\n            return ours(t)\n    else:\n        def run(self, t):\n            return t.abs()\n",
    "one of two forwards": module("return ours(x)").replace(
        "    def forward",
        f"    if {IN_USE} > 0:\n        def forward(self, t):\n            return t.abs()\n\n    def forward",
    ),
    "the date": module(
        "if date.today().year > 2040:\n    return x.abs()\nreturn ours(x)",
        more="from datetime import date",
    ),
}


@pytest.mark.parametrize("source", TELLS.values(), ids=TELLS)
def test_modes_and_what_calls_leave_behind_are_tells(source):
    violation = rules.check_source(source, "strict")
    assert violation and "may tell the judge" in violation.message, violation


FUNCTION = """
class Ours(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, eps):
        ctx.save_for_backward(t)
        ctx.eps = eps
        return ours(t)

    @staticmethod
    def backward(ctx, g):
        t, = ctx.saved_tensors
        if t.requires_grad:
            return g * (t > 0), None
        return None, None
"""
HONEST = {
    "a warning": module(
        "if x.requires_grad and torch.is_grad_enabled():\n    print('no backward')\nreturn ours(x)"
    ),
    "an autograd function": module(
        "if self.eps > 0 and torch.is_grad_enabled() and x.requires_grad:\n    return Ours.apply(x, self.eps)\nreturn ours(x)",
        "self.eps = 1e-5",
        FUNCTION,
    ),
    "the recorded side of a mode": module(
        "if self.training:\n    return ours(x).sum() / x.numel()\nelse:\n    return ours(x)"
    ),
    "the recorded rest": module(
        "if torch.is_grad_enabled():\n    return ours(x)\nlosses = ours(x)\nreturn losses.sum() / 3"
    ),
    "running statistics": module(
        "y = ours(x)\nif self.training and self.mean is not None:\n    self.count += 1\n    self.mean.mul_(0.9).add_(y.view(-1)[:1])\nreturn y",
        "self.register_buffer('mean', torch.zeros(1))\nself.register_buffer('count', torch.tensor(0))",
    ),
    "a counter of a layer's": module(
        "bn = self.bn\nif bn.training and bn.num_batches_tracked is not None:\n    bn.num_batches_tracked.add_(1)\nreturn ours(x)",
        "self.bn = nn.BatchNorm1d(4)",
    ),
    "a weight of a layer": module(
        "sms = torch.cuda.get_device_properties(0).multi_processor_count\nif sms > 100:\n    return both(x, self.fc.weight, sms * 2)\nreturn ours(x)",
        "self.fc = nn.Linear(4, 4)",
        "def both(x, w, n):\n    M, K = x.shape[0], w.shape[-1]\n    blocks = n * M + K // 2\n    return ours(x, min(blocks, 2))",
    ),
    "a generator that lasts for a call": module(
        "for block in blocks(x.shape[0]):\n    y = ours(x, block)\nreturn y",
        more="def blocks(n):\n    yield from range(1, min(n, 3))",
    ),
    "a hook that counts": module(
        "return ours(x)",
        "self.calls = 0\nself.register_forward_pre_hook(lambda m, given: setattr(m, 'calls', m.calls + 1))",
    ),
    "a kernel that a context chooses": module(
        "with torch.cuda.device(x.device) as device:\n    return self.launch(x)",
        more="",
    )
    + "\n    def launch(self, x):\n        return ours(x)\n",
    "a table that is kept": module(
        "if self.table is None or self.table.shape[0] < x.shape[0]:\n    f = 1.0 / 10000 ** (torch.arange(0, 8, 2) / 8)\n    self.table = torch.outer(torch.arange(x.shape[0]), f).cos()\nreturn ours(x)",
        "self.table = None",
    ),
    "a list of its memory in another order": module(
        "if len(self.kept) < 2:\n    self.kept.append(torch.empty_like(x))\nself.kept.reverse()\nreturn ours(self.kept[0])",
        "self.kept = []",
    ),
    "memory that is kept": module(
        "key = (x.shape, x.dtype)\nif key not in self.memory:\n    self.memory[key] = torch.empty_like(x)\ny = self.memory[key]\nif y.dim() == 3:\n    y = y.view(-1, y.shape[-1]).contiguous()\nreturn ours(x)",
        "self.memory = {}",
    ),
    "a transposed weight that is kept": module(
        "if self.kept is None:\n    self.kept = self.w.t().contiguous()\nreturn ours(x)",
        "self.w = nn.Parameter(torch.ones(3, 3))\nself.kept = None",
    ),
    "an occupancy": module(
        "y = torch.empty_like(x)\ncompiled = kernel.warmup(x, y, 4, B=256, grid=(1,))\ncompiled._init_handles()\nn = torch.cuda.get_device_properties(0).multi_processor_count * (65536 // compiled.n_regs)\nif n > 4:\n    return ours(x, 2)\nreturn ours(x)"
    ),
    "a method of the grid": module(
        "self.calls += 1\nif self.calls > 1:\n    grid = lambda meta: (triton.cdiv(x.numel(), meta['B'] * 2) + meta['N'],)\nreturn ours(x)",
        "self.calls = 0",
    ),
    "a function that becomes a kernel": module(
        "if time.time() > 0:\n    y = torch.empty_like(x)\n    fast[(1,)](x, y, B=4)\n    return y\nreturn ours(x)",
        more="def double(x, y, B: tl.constexpr):\n    i = tl.arange(0, B)\n    t = tl.load(x + i)\n    tl.store(y + i, t.sum(0) + t * 2)\nfast = triton.jit(double)",
    ),
}


@pytest.mark.parametrize("source", HONEST.values(), ids=HONEST)
def test_what_honest_modules_keep_and_ask_is_allowed(source):
    assert rules.check_source(source, "strict") is None


def test_long_sums_are_looked_through_quickly_and_whole():
    terms = " + ".join(f"n{i}" for i in range(400))
    source = module(
        f"if not self.training:\n    n = {terms}\n    n = {terms} + x\n    return n\nreturn ours(x)"
    )
    assert "the operator +" in rules.check_source(source, "strict").message
    assert rules.check_source(source.replace("+ x\n", "+ 1\n"), "strict") is None


MOVING = {
    "a copy": "return x.t().contiguous()",
    "another order": "return x.T",
    "a function": "return torch.flip(x, (0,))",
    "pieces": "return torch.cat([x[1:], x[:1]])",
}


@pytest.mark.parametrize("body", MOVING.values(), ids=MOVING)
def test_where_a_task_moves_data_torch_moves_none_behind_a_tell(body):
    source = module(f"if {IN_USE} == 0:\n    {body}\nreturn ours(x)")
    assert rules.check_source(source, "strict") is None
    assert rules.check_moves(source, "strict", Facts(computing={"add": 1})) is None
    assert "behind a condition" in rules.check_moves(source, "strict", Facts(computing={"gather": 1})).message
    assert rules.check_moves(source, "kernelbench", Facts()) is None
    plain = module("x = x.contiguous()\nif x.numel() > 4:\n    return ours(x.flip(0))\nreturn ours(x.T)")
    assert rules.check_moves(plain, "strict", Facts()) is None


def test_the_executor_knows_which_tasks_move_data(executors):
    (honest,) = [case for case in read("exploits") if case.name == "transpose/honest"]
    line = "        M, N = x.shape\n"
    two_faced = honest.source.replace(
        line, f"{line}        if {IN_USE} == 0:\n            return x.t().contiguous()\n"
    )
    assert two_faced != honest.source
    futures = [executors().submit(honest.task, source) for source in (honest.source, two_faced)]
    assert [future.result().status for future in futures] == ["correct", "rule_violation"]
