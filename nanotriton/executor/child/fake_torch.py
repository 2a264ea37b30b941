"""PyTorch without a GPU: two modes make meta tensors look like CUDA tensors and write down every ATen call.

`Functions` (a TorchFunctionMode) sees the candidate's own calls of torch. It answers `x.device` and
`x.is_cuda`, turns "cuda" into the device that the tensors really have, and refuses reads of values.
`Calls` (a TorchDispatchMode) sees the ATen calls that result. A call with a "GPU" tensor is recorded, and
every other one runs for real on the host.
The installed torch need not be built with CUDA.
"""

import re

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nanotriton.executor.child import addresses, operators
from nanotriton.executor.child.tape import CUDA, META, Tape
from nanotriton.plan.aten import ALLOWED, encode
from nanotriton.plan.trees import mapped

CPU = torch.device("cpu")
Tensor = torch.Tensor
GETTERS = {  # attributes of a "GPU" tensor, and their values
    Tensor.device.__get__: CUDA,
    Tensor.is_cuda.__get__: True,
    Tensor.is_cpu.__get__: False,
    Tensor.is_meta.__get__: False,
}
HOST_READS = {  # calls that need a tensor's values on the host
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
# ATen calls that return a value to the host, or a shape that depends on values.
READ_OPS = {"_local_scalar_dense", "equal", "is_nonzero", "item", "allclose", "is_set_to"}
ALLOCATIONS = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted"}
# ATen calls that take tensors of the host beside tensors of the GPU
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
    """Whether a value names a CUDA device: a torch.device or a string."""
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
        if func is torch.device:  # only a name: how it is used decides where it leads
            if args and type(args[0]) is int:
                return torch.device("cuda", args[0])
            return func(*args, **kwargs)
        if (operator := operators.implementation(func)) is not None:
            with self:
                return operator(*args, **kwargs)
        if not tape.building and tape.addresses.among(args, kwargs):
            tape.unrecordable(addresses.TABLE)
        first = args[0] if args and isinstance(args[0], Tensor) else None
        on_cuda = first is not None and tape.on_cuda(first)
        if on_cuda:
            answer = self._about_cuda_tensor(func, first, args)
            if answer is not NotImplemented:
                return answer
        args, kwargs, to_cuda = self._translate(func, args, kwargs)
        if func is Tensor.pin_memory:
            return first
        if tape.building:
            return self._build(func, args, kwargs, to_cuda)
        return self._call(func, args, kwargs, on_cuda, to_cuda)

    def _about_cuda_tensor(self, func, t: Tensor, args):
        """The answer to a question about a "GPU" tensor, or NotImplemented: the real tensor answers it."""
        tape = self.tape
        if func in GETTERS:
            return GETTERS[func]
        if func is Tensor.get_device:
            return 0
        if func is Tensor.__repr__:
            return f"tensor(..., device='cuda:0', size={tuple(t.shape)}, dtype={t.dtype})"
        if func is Tensor.type and len(args) == 1:
            return torch.empty(0, dtype=t.dtype).type().replace("torch.", "torch.cuda.")
        if tape.building:
            return NotImplemented
        if func is Tensor.data_ptr:
            with torch._C.DisableTorchFunction():
                known = tape.lower(t)
                return tape.address(known.untyped_storage(), known.storage_offset() * known.element_size())
        if func in HOST_READS:
            name = getattr(func, "__name__", "a call")
            tape.unrecordable(f"{name}() reads a GPU tensor's values on the host; let a kernel read them")
        if not t.is_meta and func is Tensor.to:
            where, _, _ = self._translate(func, args[1:], {})
            return func(tape.lower(t), *where)
        return NotImplemented

    def _translate(self, func, args: tuple, kwargs: dict) -> tuple[tuple, dict, bool]:
        """(args, kwargs, whether they ask for CUDA). "cuda" becomes the device that such tensors have."""
        here = CPU if self.tape.building else META
        to_cuda = func is Tensor.cuda
        if any(isinstance(a, torch.device | str) for a in args):
            to_cuda = to_cuda or any(is_cuda(a) for a in args)
            args = tuple(here if is_cuda(a) else a for a in args)
        if func is Tensor.to and len(args) > 1 and type(args[1]) is int:  # a GPU's number
            args, to_cuda = (args[0], here, *args[2:]), True
        device = kwargs.get("device")
        if device is None and self.tape.default_cuda and func in _device_constructors():
            device = CUDA
        if is_cuda(device) or type(device) is int:
            kwargs["device"], to_cuda = here, True
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return args, kwargs, to_cuda

    def _build(self, func, args: tuple, kwargs: dict, to_cuda: bool):
        """While the module is built, "GPU" tensors are on the host, with values."""
        if func is Tensor.cpu:
            return args[0].clone()
        if func is Tensor.cuda:
            out = Tensor.to(args[0], CPU)
        else:
            out = func(*args, **kwargs)
        if to_cuda:
            _put_on_cuda(self.tape, out)
        return out

    def _call(self, func, args: tuple, kwargs: dict, on_cuda: bool, to_cuda: bool):
        """In forward, "GPU" tensors are meta tensors. Uploaded data becomes a constant of the plan."""
        if func in UPLOADS and to_cuda and not on_cuda:
            return self.tape.constant(func(*args, **{**kwargs, "device": CPU}))
        if func is Tensor.new_tensor and on_cuda:
            dtype = kwargs.pop("dtype", None) or args[0].dtype
            host = {**kwargs, "dtype": dtype, "device": CPU}
            return self.tape.constant(torch.tensor(*args[1:], **host))
        if func is Tensor.cuda:
            return Tensor.to(args[0], META)
        return func(*args, **kwargs)


def _put_on_cuda(tape: Tape, out) -> None:
    """Let the candidate see the tensors of a result on the GPU."""
    for t in tree_leaves(out):
        if isinstance(t, Tensor) and t.layout == torch.strided:
            tape.put_on_cuda(t)


class Calls(TorchDispatchMode):
    """ATen calls: recorded if a GPU tensor takes part, else run."""

    def __init__(self, tape: Tape):
        super().__init__()
        self.tape = tape

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            on_cuda = any(self.tape.on_cuda(t) for t in _tensors_of((args, kwargs)))
            if self.tape.building:
                out = func(*args, **kwargs)
                if on_cuda:  # results of "GPU" tensors are "GPU" tensors
                    _put_on_cuda(self.tape, out)
                return out
            if not on_cuda and kwargs.get("device") != META:
                return func(*args, **kwargs)
            if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
                with self:  # inference mode hands over composite operators whole
                    out = func.decompose(*args, **kwargs)
                if out is not NotImplemented:
                    return out
            return self._record(func, args, kwargs)

    def _record(self, func, args: tuple, kwargs: dict):
        """The call's result in meta tensors. A call that computes something becomes a step of the plan."""
        tape, name = self.tape, func._schema.name.removeprefix("aten::")
        if name == "_local_scalar_dense":
            value = tape.known_value(args[0])
            if value is not None:
                return value
        self._refuse(name)
        if name == "record_stream":
            return None
        if tape.draws and name in RANDOM | RANDOM_IN_PLACE:
            return self._draw(func, name, args, kwargs)
        self._refuse_download(name, args, kwargs)
        if name == "_to_copy" and not tape.on_cuda(args[0]):
            return self._upload(func, args[0], kwargs)
        written = _written(func)
        if any(self._on_host(args[i]) for i in written if i < len(args)):
            tape.unrecordable("a GPU tensor is written into a host tensor; make that one on the GPU")
        args, kwargs = self._lower(name, args, kwargs)
        try:
            out = func(*args, **kwargs)
        except RuntimeError as error:
            if isinstance(error, NotImplementedError) or "meta" in str(error).lower():
                tape.unrecordable(
                    f"aten.{name} has a result whose shape depends on values; take the largest shape"
                )
            raise
        self._write_down(func, name, args, kwargs, out, mutates=bool(written))
        return out

    def _refuse(self, name: str) -> None:
        """End the recording if no plan can hold this operator."""
        if name in READ_OPS:
            self.tape.unrecordable(
                "a GPU tensor's value is read on the host (.item(), bool(), int(), float(), if);"
                " a kernel can load it from the tensor"
            )
        if name in STORAGE_OPS:
            self.tape.unrecordable(f"{name} changes a tensor's storage; make another tensor")

    def _refuse_download(self, name: str, args: tuple, kwargs: dict) -> None:
        """End the recording if a GPU tensor is copied to the host."""
        device = kwargs.get("device")
        is_download = device is not None and device != META
        if is_download or (name == "copy_" and not self.tape.on_cuda(args[0])):
            self.tape.unrecordable("a GPU tensor is copied to the host; let a kernel read it where it is")

    def _upload(self, func, t: Tensor, kwargs: dict) -> Tensor:
        """`_to_copy` of a host tensor to the GPU: a constant of the plan."""
        dropped = ("device", "pin_memory", "non_blocking")
        rest = {name: value for name, value in kwargs.items() if name not in dropped}
        return self.tape.constant(func(t, **rest, device=CPU))

    def _on_host(self, value) -> bool:
        return isinstance(value, Tensor) and not self.tape.on_cuda(value)

    def _lower(self, name: str, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments with meta tensors only. Host tensors are uploaded where they may be mixed in."""
        tape = self.tape

        def lower(value: Tensor) -> Tensor:
            if tape.on_cuda(value):
                return tape.lower(value)
            if value.dim() and name not in MAY_MIX:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two devices, "
                    "cuda:0 and cpu!"
                )
            return tape.constant(value)

        return mapped(args, lower), mapped(kwargs, lower)

    def _draw(self, func, name: str, args: tuple, kwargs: dict):
        """A script's random tensor. It is drawn here and is a constant: every replay has the same numbers."""
        target = args[0] if args else None
        args = [torch.empty(a.shape, dtype=a.dtype) if isinstance(a, Tensor) else a for a in args]
        if "device" in kwargs:
            kwargs = {**kwargs, "device": CPU}
        drawn = self.tape.constant(func(*args, **kwargs))
        if name in RANDOM:
            return drawn
        into = {"t": self.tape.tensor_id(target)}
        data = {"t": self.tape.tensor_id(drawn)}
        self.tape.aten("copy_.default", [into, data], {}, [None])
        return target

    def _write_down(self, func, name: str, args: tuple, kwargs: dict, out, mutates: bool) -> None:
        """Make a call that computes something a step of the plan."""
        tape, outs = self.tape, []
        for t in out if isinstance(out, tuple | list) else [out]:
            if not isinstance(t, Tensor) or tape.knows(t):
                outs.append(None)  # in place, a view, or no tensor at all
            else:
                tape.new_storage(t, "temp")
                outs.append(tape.tensor_id(t))
        is_view = not mutates and all(number is None for number in outs)
        if name in ALLOCATIONS or is_view:
            return  # memory appears when it is first used, and a view is one more tensor of the plan
        if func.namespace != "aten" or name not in ALLOWED:
            tape.unrecordable(f"{func._schema.name} is not an operator that a plan may name")
        kept = {key: value for key, value in kwargs.items() if key not in ("pin_memory", "non_blocking")}
        try:
            encoded = encode(list(args), tape.tensor_id, _is_meta)
            named = {key: encode(value, tape.tensor_id, _is_meta) for key, value in kept.items()}
        except TypeError as error:
            tape.unrecordable(f"aten.{name} takes a {error}, which a plan cannot hold")
        tape.aten(f"{name}.{func._overloadname}", encoded, named, outs)


def _tensors_of(arguments: tuple | list | dict) -> list[Tensor]:
    """The tensors among the arguments of an ATen call, which come in no other containers than these. It is
    asked of every call, and several times as quick as torch's trees."""
    found = []
    for value in arguments.values() if isinstance(arguments, dict) else arguments:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, tuple | list | dict):
            found += _tensors_of(value)
    return found


def _written(func) -> set[int]:
    """Numbers of the arguments that an operator writes to."""
    written = set()
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.add(number)
    return written


def _is_meta(device: torch.device) -> bool:
    return device == META
