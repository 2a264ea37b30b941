"""What a task sets globally is active for its own code and for nobody else's."""

import json
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F

from nanotriton.executor.common import probe
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.task import settings
from nanotriton.executor.judge.task.patches import shared
from nanotriton.tasks.task import Task

HEAD = """
import builtins, contextlib, gc, json, logging, math, os, pathlib, random, signal, sys, types, warnings
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.backends.cuda import matmul
from torch.nn.modules import module as hooks
from torch.overrides import BaseTorchFunctionMode, _get_current_function_mode_stack
from torch.utils import deterministic
"""
# What a task may do -> what shows it.
KEPT = {
    "torch.set_default_dtype(torch.bfloat16)": "torch.get_default_dtype()",
    "torch.set_num_threads(torch.get_num_threads() + 1)": "torch.get_num_threads()",
    "torch.set_float32_matmul_precision('medium')": "torch.get_float32_matmul_precision()",
    "matmul.allow_fp16_reduced_precision_reduction = False": "matmul.allow_fp16_reduced_precision_reduction",
    "matmul.allow_bf16_reduced_precision_reduction = False": "matmul.allow_bf16_reduced_precision_reduction",
    "torch.backends.cudnn.benchmark = True": "torch.backends.cudnn.benchmark",
    "torch.backends.cudnn.deterministic = True": "torch.backends.cudnn.deterministic",
    "torch.backends.cudnn.allow_tf32 = False": "torch.backends.cudnn.allow_tf32",
    "torch.backends.mkldnn.enabled = False": "torch.backends.mkldnn.enabled",
    "torch.backends.cuda.enable_flash_sdp(False)": "torch.backends.cuda.flash_sdp_enabled()",
    "torch.backends.cuda.enable_math_sdp(False)": "torch.backends.cuda.math_sdp_enabled()",
    "torch.backends.mha.set_fastpath_enabled(False)": "torch.backends.mha.get_fastpath_enabled()",
    "torch.use_deterministic_algorithms(True, warn_only=True)": "torch.get_deterministic_debug_mode()",
    "deterministic.fill_uninitialized_memory = False": "deterministic.fill_uninitialized_memory",
    "torch.set_autocast_enabled('cpu', True)": "torch.is_autocast_enabled('cpu')",
    "torch.set_flush_denormal(True)": "float('1e-320') * 1.0",
    "os.environ['A_TASKS_OWN'] = '1'": "os.environ.get('A_TASKS_OWN')",
    "os.environ.pop('PATH', None)": "os.environ.get('PATH')",
    "os.chdir('/')": "os.getcwd()",
    "sys.path.insert(0, '/nowhere')": "sys.path",
    "torch.rand = lambda *size: torch.ones(size)": "torch.rand",
    "F.softsign = torch.tanh": "F.softsign",
    "nn.ReLU.forward = lambda self, x: x": "nn.ReLU.forward",
    "torch.Tensor.__matmul__ = lambda self, other: self": "torch.Tensor.__matmul__",
    "torch.Tensor.of_a_task = 3": "getattr(torch.Tensor, 'of_a_task', None)",
    "math.pi = 3": "math.pi",
    "np.linalg.norm = None": "np.linalg.norm",
    "builtins.sorted = list": "sorted",
    "vars(random).pop('gauss', None)": "getattr(random, 'gauss', None)",
    "sys.modules['a_stub'] = types.ModuleType('a_stub')": "sys.modules.get('a_stub')",
    "sys.modules['string'] = types.ModuleType('string')": "sys.modules.get('string')",
}
UNDONE = {
    "torch.set_default_device('meta')": "torch.get_default_device()",
    "torch.set_grad_enabled(False)": "torch.is_grad_enabled()",
    "torch.autograd.set_detect_anomaly(True)": "torch.is_anomaly_enabled()",
    "MODE = BaseTorchFunctionMode(); MODE.__enter__()": "_get_current_function_mode_stack()",
    "hooks.register_module_forward_hook(lambda *_: None)": "dict(hooks._global_forward_hooks)",
    "torch.set_printoptions(precision=1)": "torch._tensor_str.PRINT_OPTS.precision",
    "torch.set_warn_always(True)": "torch.is_warn_always_enabled()",
    "np.set_printoptions(precision=1)": "np.get_printoptions()",
    "np.seterr(all='raise')": "np.geterr()",
    "warnings.simplefilter('error')": "warnings.filters",
    "logging.disable(logging.CRITICAL)": "logging.root.manager.disable",
    "signal.signal(signal.SIGALRM, signal.SIG_IGN)": "signal.getsignal(signal.SIGALRM)",
    "os.umask(0o027)": "pathlib.Path('/proc/self/status').read_text().split('Umask:')[1].split()[0]",
    "gc.disable()": "gc.isenabled()",
    "sys.setrecursionlimit(4321)": "sys.getrecursionlimit()",
    "sys.stderr = None": "sys.stderr",
}
GENERATORS = "[torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()]"


@pytest.fixture(autouse=True)
def torchs_default(monkeypatch):
    """What was timed before leaves this off."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)


def task(at: str = "", forward: str = "return torch.tanh(x)", name: str = "task", **places: str) -> Task:
    """A task with statements at its top, in its constructor, in get_inputs or before forward's last."""
    lines = {
        place: textwrap.indent(places.get(place, "pass"), "        ") for place in ("constructor", "before")
    }
    return Task(name, f"""{HEAD}
{at}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
{lines["constructor"]}

    def forward(self, x):
{lines["before"]}
        {forward}

def get_inputs():
{textwrap.indent(places.get("inputs", "pass"), "    ")}
    return [torch.randn(4, 33, device="cpu", dtype=torch.float32)]

def get_init_inputs():
    return []
""")  # fmt: skip


def shown(probes: dict[str, str]) -> dict[str, str]:
    names: dict = {}
    exec(HEAD, names)
    return {change: repr(eval(probe, names)) for change, probe in probes.items()}


def recorded(changes: dict[str, str]) -> str:
    """Statements that make each change and note what it shows then."""
    made = [f"{change}\nSEEN[{change!r}] = repr({probe})" for change, probe in changes.items()]
    return "\n".join(made)


@pytest.mark.parametrize("place", ["at", "constructor", "inputs", "before"])
def test_all_that_a_task_sets_is_undone(place):
    changes = KEPT | (UNDONE if place == "at" else {})
    before = shown(changes)
    if place == "at":
        reference = Reference(task(f"SEEN = {{}}\n{recorded(changes)}"))
    else:
        reference = Reference(task("SEEN = {}", **{place: recorded(changes)}))
    after, seen = shown(changes), reference.code.names["SEEN"]
    assert [change for change in changes if seen[change] == before[change]] == []  # or this tests nothing
    assert {change: after[change] for change in changes if after[change] != before[change]} == {}


def test_a_task_finds_what_it_has_set_whenever_its_code_runs():
    setting = "\n".join(KEPT)
    look = "\n".join(f"SEEN[{change!r}] = repr({probe})" for change, probe in KEPT.items())
    reference = Reference(task(f"{setting}\nSEEN = {{}}\n{look}", before=look, inputs=look))
    seen = dict(reference.code.names["SEEN"])
    before = shown(KEPT)
    for run in (
        lambda: reference.inputs.draw("plain", 1),
        lambda: reference.run([torch.ones(3)], 1),
        lambda: reference.answer("plain", 1, 1),
    ):
        reference.code.names["SEEN"].clear()
        run()
        later = dict(reference.code.names["SEEN"])
        for change in KEPT:
            if "set_default_dtype" not in change:  # in the float64 answer it is that
                assert later[change] == seen[change], change
        assert shown(KEPT) == before


def test_what_a_task_patches_counts_for_itself_alone():
    reference = Reference(task("F.softsign = lambda x: 3 * torch.tanh(x)", "return F.softsign(x)"))
    x = torch.linspace(-2, 2, 9)
    assert torch.equal(reference.run([x], 1), 3 * torch.tanh(x))
    assert torch.equal(F.softsign(x), x / (1 + x.abs()))


def test_each_task_imports_its_own_helper(tmp_path):
    loaded = []
    for factor in "25":
        folder = tmp_path / factor
        folder.mkdir()
        (folder / "helper_of_a_task.py").write_text(f"FACTOR = {factor}")
        imports = f"sys.path.insert(0, {str(folder)!r})\nimport helper_of_a_task"
        loaded.append(Reference(task(imports, "return helper_of_a_task.FACTOR * x.tanh()")))
    two, five = loaded
    one = torch.ones(())
    assert [r.run([one], 1) / one.tanh() for r in (two, five, two)] == [2, 5, 2]
    assert "helper_of_a_task" not in sys.modules


def test_a_library_that_a_task_imports_first_stays():
    sys.modules.pop("this", None)
    Reference(task("with contextlib.redirect_stdout(open(os.devnull, 'w')):\n    import this"))
    assert "this" in sys.modules


def test_newer_flags_of_precision_that_contradict_older_ones_are_undone():
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("this torch has no such flags")
    Reference(
        task("torch.backends.cuda.matmul.fp32_precision = 'tf32'\ntorch.backends.fp32_precision = 'tf32'")
    )
    assert torch.get_float32_matmul_precision() == "highest" and not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.fp32_precision == "none"


def test_what_an_alarm_interrupted_is_undone_before_the_next_step():
    neutral, rand = settings.snapshot(), torch.rand
    shared.watch()  # as `learned` does, whose end never comes
    torch.rand = print
    torch.set_default_dtype(torch.float64)
    settings.reset(neutral)
    assert torch.rand is rand and settings.snapshot() == neutral


# ---- in a worker ----


def test_a_worker_is_the_same_before_every_task(executors, tmp_path):
    """The state that a task finds, whole, before and after one that changes all of it."""
    executor = executors()
    probes = sorted(
        {*KEPT.values(), *UNDONE.values(), GENERATORS, "os.getpid()", "sorted(os.environ.items())"}
    )
    text = f"STATE = {{name: repr(eval(name)) for name in {probes!r}}}\njson.dump(STATE, open(FILE, 'w'))"
    files = [tmp_path / name for name in ("before", "hostile", "after")]
    changes = "\n".join([*KEPT, *UNDONE, "random.random()\nnp.random.rand()\ntorch.randn(3)"])
    for file, hostile in zip(files, (False, True, False), strict=True):
        executor.submit(
            task((changes if hostile else "") + f"\nFILE = {str(file)!r}\n{text}", name=file.name),
            probe.CANDIDATE,
        ).result()
    before, changed, after = (json.loads(file.read_text()) for file in files)
    assert before["os.getpid()"] == after["os.getpid()"]
    assert {name for name in before if changed[name] == before[name]} == {"os.getpid()"}
    assert {name: (before[name], after[name]) for name in before if before[name] != after[name]} == {}
