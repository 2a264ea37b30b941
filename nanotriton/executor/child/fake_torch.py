"""PyTorch without a GPU: two modes that make meta tensors look like CUDA tensors and write down every ATen call.

`Functions` (a TorchFunctionMode) sees what the candidate writes: it answers `x.device` and `x.is_cuda`, turns "cuda" into
the device that the tensors really have, and refuses reads of values. `Calls` (a TorchDispatchMode) sees the ATen calls that come
of it: what touches a "GPU" tensor is recorded, everything else runs for real on the host. This needs no CUDA in torch.
"""

import re
import sys
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from nanotriton.executor.child.tape import CUDA, META, Tape
from nanotriton.executor.common.card import Card
from nanotriton.plan.aten import ALLOWED, encode

CPU = torch.device("cpu")
Tensor = torch.Tensor
GETTERS = {
    Tensor.device.__get__: CUDA,
    Tensor.is_cuda.__get__: True,
    Tensor.is_cpu.__get__: False,
    Tensor.is_meta.__get__: False,
}
HOST_READS = {
    Tensor.tolist,
    Tensor.numpy,
    Tensor.__array__,
    Tensor.__reduce_ex__,
    Tensor.__contains__,
    Tensor.__dlpack__,
    Tensor.apply_,
    Tensor.map_,
}
UPLOADS = (torch.tensor, torch.as_tensor, torch.asarray)
# Device functions that return a value, or a shape that depends on values, to the host.
READ_OPS = {"_local_scalar_dense", "equal", "is_nonzero", "item", "allclose", "is_set_to"}
ALLOCATIONS = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted"}
# host tensors are welcome
MAY_MIX = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "copy_", "_to_copy"}
RANDOM = {
    "rand",
    "randn",
    "randint",
    "rand_like",
    "randn_like",
    "randint_like",
    "randperm",
    "normal",
    "bernoulli",
    "multinomial",
}
RANDOM_IN_PLACE = {"normal_", "uniform_", "random_", "bernoulli_", "exponential_"}
STORAGE_OPS = {"resize_", "set_", "resize_as_", "_resize_output_"}


def is_cuda(value) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and re.fullmatch(r"cuda(:\d+)?", value) is not None


class Functions(TorchFunctionMode):
    """The candidate's torch calls, before torch sees them."""

    def __init__(self, tape: Tape):
        super().__init__()
        self.tape = tape

    def __torch_function__(self, func, types, args=(), kwargs=None):
        tape, kwargs = self.tape, dict(kwargs or {})
        if func is torch.device:  # only a name: where it leads is decided when it is used
            return torch.device("cuda", args[0]) if args and type(args[0]) is int else func(*args, **kwargs)
        if isinstance(func, torch._ops.OpOverload) and (op := OPDEFS.get(func._schema.name)) is not None:
            with self:  # an operator that the candidate registered is its Python function
                return op._init_fn(*args, **kwargs)
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if first is not None and tape.on_cuda(first):
            if func in GETTERS:
                return GETTERS[func]
            if (answer := self._about_cuda_tensor(func, first, args)) is not NotImplemented:
                return answer
        args, kwargs, to_cuda = self._translate(func, args, kwargs)
        if func is Tensor.pin_memory:
            return first
        if (
            func in UPLOADS
            and to_cuda
            and not tape.building
            and not (first is not None and tape.on_cuda(first))
        ):
            return tape.constant(func(*args, **{**kwargs, "device": CPU}))
        if func is Tensor.new_tensor and tape.on_cuda(first) and not tape.building:
            dtype = kwargs.pop("dtype", None) or first.dtype
            return tape.constant(torch.tensor(*args[1:], **{**kwargs, "dtype": dtype, "device": CPU}))
        if func is Tensor.cpu and tape.building:
            return first.clone()
        if func is Tensor.cuda:
            func, args, kwargs = Tensor.to, (first, CPU if tape.building else META), {}
        out = func(*args, **kwargs)
        if to_cuda and tape.building:
            for t in tree_leaves(out):
                if isinstance(t, Tensor) and t.layout == torch.strided:
                    tape.put_on_cuda(t)
        return out

    def _about_cuda_tensor(self, func, t: Tensor, args):
        """Questions whose answer is not the meta tensor's own."""
        tape = self.tape
        if func is Tensor.get_device:
            return 0
        if func is Tensor.__repr__:
            return f"tensor(..., device='cuda:0', size={tuple(t.shape)}, dtype={t.dtype})"
        if func is Tensor.type and len(args) == 1:
            return torch.empty(0, dtype=t.dtype).type().replace("torch.", "torch.cuda.")
        if tape.building:
            return NotImplemented
        if func is Tensor.data_ptr:
            # Triton specialises a pointer on its alignment, and storages are aligned; nobody else gets an
            # address.
            if (
                "/triton/" in sys._getframe(2).f_code.co_filename
                or sys._getframe(2).f_code.co_name == "dynamic_func"
            ):
                return t.storage_offset() * t.element_size() % 16
            tape.unrecordable("data_ptr(): addresses are not known while recording")
        if func in HOST_READS:
            tape.unrecordable(
                f"{getattr(func, '__name__', 'a call')}() reads a GPU tensor's values on the host"
            )
        if not t.is_meta and func is Tensor.to:
            return func(tape.lower(t), *self._translate(func, args[1:], {})[0])
        return NotImplemented

    def _translate(self, func, args: tuple, kwargs: dict) -> tuple[tuple, dict, bool]:
        """Arguments with "cuda" replaced by where such tensors really live, and whether it was asked for."""
        here = CPU if self.tape.building else META
        to_cuda = func is Tensor.cuda
        if any(isinstance(a, torch.device | str) for a in args):
            cuda = [is_cuda(a) for a in args]
            to_cuda = to_cuda or any(cuda)
            args = tuple(here if c else a for c, a in zip(cuda, args))
        if func is Tensor.to and len(args) > 1 and type(args[1]) is int:
            args, to_cuda = (args[0], here, *args[2:]), True
        device = kwargs.get("device")
        if device is None and self.tape.default_cuda and func in _device_constructors():
            device = CUDA
        if is_cuda(device) or type(device) is int:
            kwargs["device"], to_cuda = here, True
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return args, kwargs, to_cuda


class Calls(TorchDispatchMode):
    """ATen calls: recorded if a GPU tensor takes part, else run."""

    def __init__(self, tape: Tape):
        super().__init__()
        self.tape = tape

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            cuda = [t for t in tensors if self.tape.on_cuda(t)]
            if self.tape.building:
                return self._build(func, args, kwargs, bool(cuda))
            if not cuda and kwargs.get("device") != META:
                return func(*args, **kwargs)
            if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
                with self:  # inference mode hands over composite operators whole
                    out = func.decompose(*args, **kwargs)
                if out is not NotImplemented:
                    return out
            return self._record(func, args, kwargs, tensors)

    def _build(self, func, args, kwargs, on_cuda: bool):
        """While the module is built everything is computed; results of GPU tensors are GPU tensors."""
        out = func(*args, **kwargs)
        if on_cuda:
            for t in tree_leaves(out):
                if isinstance(t, Tensor) and t.layout == torch.strided:
                    self.tape.put_on_cuda(t)
        return out

    def _record(self, func, args, kwargs, tensors: list[Tensor]):
        tape, name = self.tape, func._schema.name.removeprefix("aten::")
        if name == "_local_scalar_dense" and (value := tape.known_value(args[0])) is not None:
            return value
        if name in READ_OPS:
            tape.unrecordable(
                "a GPU tensor's value is read on the host (.item(), bool(), int(), float(), if)"
            )
        if name in STORAGE_OPS:
            tape.unrecordable(f"{name} changes a tensor's storage")
        if name == "record_stream":
            return None
        if tape.draws and name in RANDOM | RANDOM_IN_PLACE:
            return self._draw(func, name, args, kwargs)
        device = kwargs.get("device")
        if (device is not None and device != META) or (name == "copy_" and not tape.on_cuda(args[0])):
            tape.unrecordable("a GPU tensor is copied to the host")
        if name == "_to_copy" and not tape.on_cuda(args[0]):  # an upload
            rest = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "non_blocking")}
            return tape.constant(func(args[0], **rest, device=CPU))
        mutable = {
            i
            for i, a in enumerate(func._schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        }

        def lower(t):
            if not isinstance(t, Tensor):
                return t
            if tape.on_cuda(t):
                return tape.lower(t)
            if t.dim() and name not in MAY_MIX:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
                )
            return tape.constant(t)

        if any(isinstance(args[i], Tensor) and not tape.on_cuda(args[i]) for i in mutable if i < len(args)):
            tape.unrecordable("a GPU tensor is written into a host tensor")
        args, kwargs = tree_map(lower, args), tree_map(lower, kwargs)
        try:
            out = func(*args, **kwargs)
        except RuntimeError as error:
            if isinstance(error, NotImplementedError) or "meta" in str(error).lower():
                tape.unrecordable(f"aten.{name} has a result whose shape depends on values")
            raise
        self._write_down(func, name, args, kwargs, out, bool(mutable))
        return out

    def _draw(self, func, name: str, args, kwargs):
        """A script's random tensor: drawn on the host, so that it is the same wherever the plan is replayed."""
        target = args[0] if args else None
        args = [torch.empty(a.shape, dtype=a.dtype) if isinstance(a, Tensor) else a for a in args]
        drawn = self.tape.constant(func(*args, **{**kwargs, "device": CPU} if "device" in kwargs else kwargs))
        if name in RANDOM:
            return drawn
        self.tape.aten(
            "copy_.default",
            [{"t": self.tape.tensor_id(target)}, {"t": self.tape.tensor_id(drawn)}],
            {},
            [None],
        )
        return target

    def _write_down(self, func, name: str, args, kwargs, out, mutates: bool) -> None:
        tape, outs = self.tape, []
        for t in out if isinstance(out, tuple | list) else [out]:
            if not isinstance(t, Tensor) or tape.knows(t):
                outs.append(None)  # in place, a view, or no tensor at all
            else:
                tape.new_storage(t, "temp")
                outs.append(tape.tensor_id(t))
        if name in ALLOCATIONS or (not mutates and all(o is None for o in outs)):
            return  # memory appears when it is first used; a view is just another tensor of the plan
        if func.namespace != "aten" or name not in ALLOWED:
            tape.unrecordable(f"{func._schema.name} is not an operator that a plan may name")
        drop = {"pin_memory", "non_blocking"}
        try:
            encoded = encode(list(args), tape.tensor_id, lambda d: d == META)
            named = {
                k: encode(v, tape.tensor_id, lambda d: d == META) for k, v in kwargs.items() if k not in drop
            }
        except TypeError as error:
            tape.unrecordable(f"aten.{name} takes a {error}, which a plan cannot hold")
        tape.aten(f"{name}.{func._overloadname}", encoded, named, outs)


class _Stream:
    """Streams and events: there is one, it is always in order, and nothing takes time."""

    cuda_stream, device, stream_id, device_index, priority = 0, CUDA, 0, 0, 0

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def _nothing(self, *args, **kwargs):
        return None

    synchronize = wait = wait_stream = wait_event = record = _nothing

    def record_event(self, event=None):
        return event or _Stream()

    def query(self):
        return True

    def elapsed_time(self, other):
        return 1.0


def _refuse(what: str):
    def call(*args, **kwargs):
        if Tape.active is not None:
            Tape.active.unrecordable(f"{what} cannot be recorded")
        raise RuntimeError(f"{what} cannot be recorded")

    return call


def _set_default_device(device) -> None:
    if Tape.active is not None:
        Tape.active.default_cuda = is_cuda(device) or type(device) is int


def _empty_strided_cuda(size, stride, dtype) -> Tensor:
    """What code that imitates torch.compile's output allocates with."""
    return torch.empty_strided(size, stride, dtype=dtype, device=CUDA)


_enter_autocast = torch.autocast.__enter__


def _autocast(self):
    if Tape.active is not None and self.device == "cuda" and self._enabled:
        Tape.active.unrecordable("torch.autocast: the recorder does not see the casts")
    return _enter_autocast(self)


def answers(card: Card) -> list[tuple[object, str, Any]]:
    """(owner, name, value): what makes torch.cuda answer as on a machine with that one GPU. Nothing in it initialises CUDA."""
    cuda, properties = torch.cuda, SimpleNamespace(**asdict(card), is_multi_gpu_board=0, gcnArchName="")
    constants = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "is_bf16_supported": True,
        "get_device_name": card.name,
        "get_device_capability": (card.major, card.minor),
        "get_device_properties": properties,
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_reserved": 0,
        "mem_get_info": (card.total_memory, card.total_memory),
        "is_current_stream_capturing": False,
        "get_arch_list": [card.sm],
    }
    nothing = (
        "synchronize",
        "set_device",
        "empty_cache",
        "manual_seed",
        "manual_seed_all",
        "seed",
        "seed_all",
        "init",
        "_lazy_init",
        "ipc_collect",
        "reset_peak_memory_stats",
        "reset_max_memory_allocated",
        "set_stream",
        "set_per_process_memory_fraction",
    )
    streams = (
        "Stream",
        "Event",
        "ExternalStream",
        "current_stream",
        "default_stream",
        "stream",
        "StreamContext",
        "device",
        "device_of",
        "_DeviceGuard",
    )
    # one function each: torch keys tables by them
    return [
        *((cuda, name, lambda *args, _value=value, **kwargs: _value) for name, value in constants.items()),
        *((cuda, name, lambda *args, **kwargs: None) for name in nothing),
        *((cuda.nvtx, name, lambda *args, **kwargs: None) for name in ("range_push", "range_pop", "mark")),
        *((cuda, name, _Stream) for name in streams),
        *((cuda, name, _refuse("a CUDA graph")) for name in ("CUDAGraph", "graph", "make_graphed_callables")),
        (torch, "compile", _refuse("torch.compile")),
        *((owner, "wrap_triton", lambda kernel: kernel) for owner in (torch.library, torch._library.triton)),
        (torch, "set_default_device", _set_default_device),
        (torch.backends.cuda, "is_built", lambda: True),
        (torch._C, "_cuda_getCurrentRawStream", lambda device: 0),
        (torch._C._dynamo.guards, "_empty_strided_cuda", _empty_strided_cuda),
        (torch.autocast, "__enter__", _autocast),
    ]
