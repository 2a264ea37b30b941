"""From a module to its operator graph: torch.fx says which operators run, on the meta device, so that sizes
cost nothing.

Numbers that the module keeps (`self.scale`, `self.act.negative_slope`, `x.shape[1]`) keep their names on
the way, so that a kernel gets them as arguments instead of their values.
"""

import operator
import re
import threading
from collections.abc import Callable

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from nanotriton.collect.compose import anchors, layouts, losses  # noqa: F401  (they register into LOWER)
from nanotriton.collect.compose.ir import (
    Builder,
    Graph,
    NamedFloat,
    NamedInt,
    Node,
    Scalar,
    Unfit,
    text_of,
    views_last,
)
from nanotriton.collect.compose.lower import LOWER
from nanotriton.collect.compose.operators import ALIASES, OPS, expression, result_type, signature

# F.max_pool2d calls itself boolean_dispatch: names come from where functions are found
NAMES: dict[Callable, str] = {}
for _owner in (torch, F, torch.special, torch.linalg):
    for _name in dir(_owner):
        if (
            callable(_found := getattr(_owner, _name))
            and not _name.startswith("_")
            and getattr(_found, "__hash__", None)
        ):
            if _name in LOWER or _name in OPS:  # torch.mm has other names too
                NAMES[_found] = _name
            NAMES.setdefault(_found, _name)

# nn modules whose tensors and numbers are the functional's arguments: (operator, tensors, numbers).
_NORM, _POOL = ("weight", "bias"), ("kernel_size", "stride", "padding")
_CONV = ("stride", "padding", "dilation", "groups")
MODULES: dict[str, tuple[str, tuple, tuple]] = {
    "Linear": ("linear", _NORM, ()),
    "LayerNorm": ("layer_norm", _NORM, ("normalized_shape", "eps")),
    "RMSNorm": ("rms_norm", ("weight",), ("normalized_shape", "eps")),
    "GroupNorm": ("group_norm", _NORM, ("num_groups", "eps")),
    "Softmax": ("softmax", (), ("dim",)),
    "LogSoftmax": ("log_softmax", (), ("dim",)),
    "Softmin": ("softmin", (), ("dim",)),
    "GLU": ("glu", (), ("dim",)),
    "Embedding": ("embedding_module", ("weight",), ()),
    "CosineSimilarity": ("cosine_similarity", (), ("dim", "eps")),
    "PReLU": ("prelu", ("weight",), ()),
    "MSELoss": ("mse_loss", (), ("reduction",)),
    "L1Loss": ("l1_loss", (), ("reduction",)),
    "SmoothL1Loss": ("smooth_l1_loss", (), ("reduction", "beta")),
    "HuberLoss": ("huber_loss", (), ("reduction", "delta")),
    "BCELoss": ("binary_cross_entropy", (), ("reduction",)),
    "BCEWithLogitsLoss": ("binary_cross_entropy_with_logits", (), ("reduction",)),
    "KLDivLoss": ("kl_div", (), ("reduction", "log_target")),
    "CrossEntropyLoss": ("cross_entropy", (), ("reduction", "label_smoothing")),
    "NLLLoss": ("nll_loss", (), ("reduction",)),
    "TripletMarginLoss": ("triplet_margin_loss", (), ("margin", "reduction")),
    "SoftMarginLoss": ("soft_margin_loss", (), ("reduction",)),
    "PixelShuffle": ("pixel_shuffle", (), ("upscale_factor",)),
    "PixelUnshuffle": ("pixel_unshuffle", (), ("downscale_factor",)),
    "ChannelShuffle": ("channel_shuffle", (), ("groups",)),
    "Flatten": ("flatten", (), ("start_dim", "end_dim")),
    "Upsample": ("interpolate", (), ("size", "scale_factor", "mode")),
}
for _d in (1, 2, 3):
    MODULES[f"Conv{_d}d"] = ("conv", _NORM, _CONV)
    MODULES[f"ConvTranspose{_d}d"] = (
        "conv_transpose",
        _NORM,
        ("stride", "padding", "output_padding", "groups", "dilation"),
    )
    MODULES[f"MaxPool{_d}d"] = (f"max_pool{_d}d", (), (*_POOL, "dilation", "ceil_mode"))
    MODULES[f"AvgPool{_d}d"] = (f"avg_pool{_d}d", (), (*_POOL, "ceil_mode", "count_include_pad"))
    MODULES[f"LPPool{_d}d"] = (f"lp_pool{_d}d", (), ("norm_type", "kernel_size", "stride"))
    MODULES[f"AdaptiveAvgPool{_d}d"] = (f"adaptive_avg_pool{_d}d", (), ("output_size",))
    MODULES[f"AdaptiveMaxPool{_d}d"] = (f"adaptive_max_pool{_d}d", (), ("output_size",))
    MODULES[f"InstanceNorm{_d}d"] = ("instance_norm", _NORM, ("eps",))
    MODULES[f"BatchNorm{_d}d"] = (
        "batch_norm",
        ("running_mean", "running_var", *_NORM),
        ("training", "momentum", "eps"),
    )
    MODULES[f"ZeroPad{_d}d"] = ("pad", (), ("padding",))
ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "truediv": "/"}
ARITHMETIC["pow"] = "**"
# they change nothing of the values
IGNORED = (
    "inplace",
    "out",
    "size_average",
    "reduce",
    "_stacklevel",
    "memory_format",
)
TRACING = threading.Lock()
IDENTITY = ("contiguous", "clone", "detach", "Identity", "alias")


def trace(model: nn.Module, inputs: list) -> Graph:
    """The graph of `model`, whose parameters and `inputs` are on the meta device. Raises Unfit."""
    name_numbers(model)
    try:
        traced = symbolic_trace(model)
    except Exception as error:
        raise Unfit(f"torch.fx can't follow it: {type(error).__name__}: {error}".split("\n")[0]) from None
    return Reader(traced, inputs).read()


def symbolic_trace(model: nn.Module) -> torch.fx.GraphModule:
    """torch.fx's, for any number of threads: it patches nn.Module.__call__ while it traces, and two that
    overlap restore each other's patch, which then stays.
    """
    with TRACING:
        return torch.fx.symbolic_trace(model)


def name_numbers(model: nn.Module) -> None:
    """Numbers among the module's own attributes get their names: `self.scale`."""
    for key, value in list(vars(model).items()):
        if type(value) is float:
            vars(model)[key] = NamedFloat(value, f"self.{key}")
        elif type(value) is int and not key.startswith("_"):
            vars(model)[key] = NamedInt(value, f"self.{key}")


def path_text(target: str) -> str:
    """`layers.0.weight` -> `self.layers[0].weight`."""
    return "self." + re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", target)


class Reader:
    """Walks a traced module and builds the operator graph."""

    def __init__(self, traced: torch.fx.GraphModule, inputs: list):
        self.traced = traced
        self.inputs = list(inputs)
        self.b = Builder()
        self.values: dict[torch.fx.Node, object] = {}

    def read(self) -> Graph:
        for node in self.traced.graph.nodes:
            if node.op == "output":
                return self.graph(self.resolve(node.args[0]))
            self.values[node] = getattr(self, node.op)(node)
        raise Unfit("forward returns nothing")

    def graph(self, result) -> Graph:
        outputs = list(result) if isinstance(result, tuple | list) else [result]
        if not all(isinstance(o, Node) for o in outputs):
            raise Unfit("forward returns something other than tensors")
        graph = Graph(self.b.nodes, outputs, isinstance(result, tuple | list), self.b.effects)
        views_last(graph)
        return graph

    def resolve(self, value):
        return torch.fx.node.map_aggregate(
            value, lambda v: self.values[v] if isinstance(v, torch.fx.Node) else v
        )

    # ---- one method for each kind of fx node ----

    def placeholder(self, node: torch.fx.Node):
        if not self.inputs:
            if node.args:
                return node.args[0]
            raise Unfit("an argument of forward has no example")
        value = self.inputs.pop(0)
        if not isinstance(value, torch.Tensor):
            named = {float: NamedFloat, int: NamedInt}.get(type(value))
            return named(value, node.target) if named else value
        if value.dtype == torch.float64 or value.dtype.is_complex:
            raise Unfit(f"an input of {value.dtype}")
        made = self.b.add(node.target, "input", (), value.shape, value.dtype, node.target)
        made.attrs["contiguous"] = value.is_contiguous()
        return made

    def get_attr(self, node: torch.fx.Node):
        value = operator.attrgetter(node.target)(self.traced)
        if not isinstance(value, torch.Tensor):
            raise Unfit(f"{node.target} is a {type(value).__name__}")
        if node.target.startswith("_tensor_constant"):
            raise Unfit("a tensor that forward makes of others' numbers")
        return self.b.param(path_text(node.target), value)

    def call_module(self, node: torch.fx.Node):
        module = self.traced.get_submodule(node.target)
        args, kwargs = self.resolve(node.args), self.resolve(node.kwargs)
        kind, path = type(module).__name__, path_text(node.target)
        if kind in IDENTITY or (kind.startswith("Dropout") and not module.p):
            return args[0]
        if kind in MODULES:
            name, tensors, numbers = MODULES[kind]
            if name == "instance_norm":
                anchors.batched(args[0], int(kind[-2]))
            given = {
                t: self.b.param(f"{path}.{t}", getattr(module, t))
                for t in tensors
                if getattr(module, t, None) is not None
            }
            given |= {n: self.number(module, path, n) for n in numbers}
            return self.lower(name, args, {**given, **kwargs}, module=module, path=path)
        name = ALIASES.get(kind.lower(), kind.lower())
        name = next((n for n in OPS if n.replace("_", "") == name.replace("_", "")), None)
        if name is None or not type(module).__module__.startswith("torch.nn"):
            raise Unfit(f"a module of kind {kind}")
        numbers = [p for p in list(signature(OPS[name].parameters).parameters)[1:] if hasattr(module, p)]
        return self.lower(name, args, {n: self.number(module, path, n) for n in numbers})

    def number(self, module: nn.Module, path: str, name: str):
        """A number that a layer keeps, by its name; a tuple of them, one by one."""
        value = getattr(module, name)
        named = lambda v, text: (
            NamedFloat(v, text) if type(v) is float else NamedInt(v, text) if type(v) is int else v
        )
        if isinstance(value, tuple):
            return tuple(named(v, f"{path}.{name}[{i}]") for i, v in enumerate(value))
        return named(value, f"{path}.{name}")

    def call_function(self, node: torch.fx.Node):
        name = NAMES.get(node.target) or getattr(node.target, "__name__", "?")
        return self.call(name, self.resolve(node.args), self.resolve(node.kwargs))

    def call_method(self, node: torch.fx.Node):
        return self.call(node.target, self.resolve(node.args), self.resolve(node.kwargs))

    # ---- operators ----

    def call(self, name: str, args: tuple, kwargs: dict):
        if name == "getattr":
            return (
                self.attribute(*args)
                if isinstance(args[0], Node)
                else args[0][("values", "indices").index(args[1])]
            )
        if name in ("size", "dim", "numel", "ndimension", "__len__", "len"):
            return self.size(name, *args)
        if name == "getitem" and not isinstance(args[0], Node):
            return args[0][args[1]]
        if name == "tensor" and isinstance(args[0], float | int):
            made = Scalar(args[0])
            if hasattr(args[0], "text"):
                made.text = args[0].text
            return made
        if not any(isinstance(a, Node) for a in (*flat(args), *flat(kwargs.values()))):
            return self.arithmetic(name, args)
        if name in IDENTITY:
            return args[0]
        return self.lower(name, args, kwargs)

    def attribute(self, x: Node, name: str):
        if name == "shape":
            # forward's name for the tensor isn't known yet: the composer puts it between the marks
            return tuple(NamedInt(n, f"@{x.name}@.shape[{i}]") for i, n in enumerate(x.shape))
        if name in ("T", "mT"):
            return self.lower("transpose", (x, -2, -1), {})
        if name == "ndim":
            return x.rank
        if name in ("dtype", "device"):
            return getattr(x, name, None)
        raise Unfit(f"the attribute {name} of a tensor")

    def size(self, name: str, x, dim=None):
        if not isinstance(x, Node):
            return len(x)
        shape = self.attribute(x, "shape")
        if name == "size":
            return shape if dim is None else shape[dim]
        if name == "numel":
            return NamedInt(torch.Size(x.shape).numel(), f"@{x.name}@.numel()")
        return shape[0] if name in ("len", "__len__") else x.rank

    def arithmetic(self, name: str, args: tuple):
        """An operator of numbers alone: the result's name is the formula."""
        function = getattr(operator, name, None) or {
            "int": int,
            "float": float,
            "sqrt": lambda v: v**0.5,
            "max": max,
            "min": min,
        }.get(name)
        if function is None:
            raise Unfit(f"{name} of numbers")
        value = function(*args)
        if name in ARITHMETIC and any(hasattr(a, "text") for a in args):
            text = f" {ARITHMETIC[name]} ".join(f"({t})" if " " in (t := text_of(a)) else t for a in args)
            return NamedInt(value, text) if isinstance(value, int) else NamedFloat(value, text)
        return value

    def lower(self, name: str, args: tuple, kwargs: dict, **extra):
        """Any operator -> its node (or nodes). Raises Unfit for what no table knows."""
        kwargs = {
            k: v
            for k, v in kwargs.items()
            if k not in IGNORED and (v is not None or k not in ("dtype", "weight", "pos_weight"))
        }
        if "input" in kwargs and not args:
            args = (kwargs.pop("input"),)
        name = name if name in LOWER else name.rstrip("_").removeprefix("__")
        reverse = name[:1] == "r" and name[1:] in ("add", "sub", "mul", "truediv", "pow")
        name = name[1:] if reverse else name
        name, args = ALIASES.get(name, name), args[::-1] if reverse else args
        if name in OPS:
            return self.elementwise(name, args, kwargs)
        if name not in LOWER:
            raise Unfit(f"no Triton for {name}")
        try:
            return LOWER[name](
                self.b, *args, **kwargs, op=name, **(extra if name in anchors.WANTS_MODULE else {})
            )
        except (TypeError, AttributeError) as error:
            raise Unfit(f"{name}: {error}") from None

    def elementwise(self, name: str, args: tuple, kwargs: dict):
        op = OPS[name]
        alpha = kwargs.pop("alpha", None) if name in ("add", "sub") else None
        if kwargs.get("rounding_mode"):
            raise Unfit("a division that rounds")
        try:
            bound = signature(op.parameters).bind(*args, **kwargs)
        except TypeError as error:
            raise Unfit(f"{name}: {error}") from None
        bound.apply_defaults()
        if alpha not in (None, 1):
            bound.arguments["other"] = self.b.map("scaled", "{0} * {1}", bound.arguments["other"], alpha)
        text, values = expression(op, dict(bound.arguments))
        nodes = [v for v in values if isinstance(v, Node)]
        if not nodes:
            raise Unfit(f"{name} of no tensor")
        dtype = (
            torch.bool
            if op.domain == "bool"
            else result_type(op, nodes[-1].dtype if name == "where" else nodes[0].dtype)
        )
        if name in ("where", "masked_fill"):
            dtype = next((n.dtype for n in nodes if n.dtype != torch.bool), torch.float32)
        return self.b.map(name, text, *values, dtype=dtype)


def flat(values):
    """The leaves of nested tuples and lists."""
    for v in values:
        if isinstance(v, tuple | list):
            yield from flat(v)
        else:
            yield v
