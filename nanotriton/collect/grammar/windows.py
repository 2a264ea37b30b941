"""Convolutions and poolings of a chain, with every hyperparameter that torch.nn documents drawn, and passed
as people pass them: as numbers, as arguments of the constructor, with defaults or without.
"""

from dataclasses import dataclass

from nanotriton.collect.grammar.chain import Chain
from nanotriton.collect.grammar.draft import Misfit


@dataclass
class Window:
    """What a layer with a window is made with; a number holds for each dimension."""

    kernel_size: int | tuple
    stride: int | tuple = 1
    padding: int | tuple = 0
    dilation: int | tuple = 1
    output_padding: int | tuple = 0

    def each(self, name: str, d: int) -> tuple:
        value = getattr(self, name)
        return value if isinstance(value, tuple) else (value,) * d


def drawn(made: Chain, d: int, transposed: bool = False, pooling: bool = False) -> Window:
    """A window that fits in what the small sizes leave. Most hyperparameters stay at their default."""
    rng = made.rng
    for _ in range(50):
        draw = lambda: rng.choice([k for k in (2, 3, 3, 3, 4, 5, 7) if k <= (7, 5, 3)[d - 1]])
        uneven = d > 1 and rng.random() < 0.25
        kernel = tuple(draw() for _ in range(d)) if uneven else draw()
        if not pooling and not uneven and rng.random() < 0.12:
            kernel = 1
        window = Window(kernel)
        ways = {"stride": (2, 2, 3), "padding": (1, 1, 2), "dilation": (2, 2, 3)}
        for name, values in ways.items():
            if kernel == 1 and name != "stride":
                continue
            if rng.random() < {"stride": 0.4, "padding": 0.5, "dilation": 0.25}[name]:
                tuples = uneven and rng.random() < 0.7
                value = tuple(rng.choice((*values, 1)) for _ in range(d)) if tuples else rng.choice(values)
                setattr(window, name, value)
        if transposed and window.stride != 1 and rng.random() < 0.4:
            window.output_padding = 1
        if pooling:
            window.stride = window.stride if rng.random() < 0.6 else None
        if fits(window, made.extent, d, transposed, pooling):
            return window
    raise Misfit


def fits(window: Window, extent: list[int], d: int, transposed: bool, pooling: bool) -> bool:
    for k, s, p, g, e, n in zip(
        *(
            window.each(name, d)
            for name in ("kernel_size", "stride", "padding", "dilation", "output_padding")
        ),
        extent,
    ):
        reach = g * (k - 1) + 1
        if pooling and (2 * p > k or reach > n):
            return False
        if transposed and ((n - 1) * (s or 1) - 2 * p + reach + e < 2 or e >= max(s or 1, g)):
            return False
        if not transposed and reach > n + 2 * p - 1:
            return False
    return True


def after(window: Window, extent: list[int], transposed: bool) -> list[int]:
    """What is left of the spatial dimensions."""
    found = []
    for i, n in enumerate(extent):
        k, p, g, e = (
            window.each(name, len(extent))[i]
            for name in ("kernel_size", "padding", "dilation", "output_padding")
        )
        s = k if window.stride is None else window.each("stride", len(extent))[i]
        if transposed:
            found.append((n - 1) * s - 2 * p + g * (k - 1) + e + 1)
        else:
            found.append((n + 2 * p - g * (k - 1) - 1) // s + 1)
    return found


def arguments(made: Chain, window: Window, names: list[str], first: str) -> str:
    """The layer's arguments as text. Each number is written there, or is one of the constructor's."""
    rng, draft = made.rng, made.draft
    defaults = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}
    if not first:  # a pooling's stride is its window's size unless it is given
        del defaults["stride"]
    passed = rng.random() < 0.6  # through the constructor
    with_defaults = passed and rng.random() < 0.5
    texts = [first] if first else []
    for name in names:
        value = getattr(window, name)
        unusual = name not in defaults or value != defaults[name]
        if value is None or (not unusual and not with_defaults and rng.random() < 0.85):
            continue
        own = f"pool_{name}" if name in draft.fixed else name
        if passed and own not in draft.fixed:
            draft.fixed[own] = value
            if with_defaults and name in defaults:
                draft.defaults[own] = (
                    defaults[name] if not isinstance(value, tuple) else (defaults[name],) * len(value)
                )
            text = own
        else:
            text = str(value)
        by_position = name == "kernel_size" and rng.random() < 0.7
        texts.append(text if by_position else f"{name}={text}")
    return ", ".join(texts)


def habit(window: Window) -> str:
    """What is unusual about a window, for the operator's name."""
    for name, value, word in (("dilation", 1, "dilated"), ("stride", 1, "strided"), ("padding", 0, "padded")):
        given = getattr(window, name)
        if (set(given) if isinstance(given, tuple) else {given}) - {value, None}:
            return f"_{word}"
    return ""


def convolution(made: Chain, d: int, transposed: bool, single: bool) -> None:
    """A convolution of d dimensions, or a transposed one. single: it is the whole module, so that groups
    are drawn more often.
    """
    rng, draft = made.rng, made.draft
    window = drawn(made, d, transposed)
    kind = rng.choices(
        ("full", "grouped", "depthwise", "pointwise"), (70, 10, 12, 8) if single else (92, 4, 4, 0)
    )[0]
    names = ["kernel_size", "stride", "padding", *(["output_padding"] if transposed else []), "dilation"]
    if kind == "pointwise" and not transposed:
        window = Window(1)
    out = "channels" if kind == "depthwise" else "out_channels"
    text = arguments(made, window, names, f"channels, {out}")
    if kind == "depthwise":
        text += ", groups=channels"
    elif kind == "grouped":
        draft.fixed["groups"] = rng.choice((2, 4))
        text += ", groups=groups"
    if "groups" not in text and draft.defaults and rng.random() < 0.5:
        draft.fixed["groups"], draft.defaults["groups"] = 1, 1
        text += ", groups=groups"
    with_bias = rng.random() < (0.5 if single else 0.85)
    # Who makes the module often decides it. A reader of the kernel has to look for the value then: a module
    # without a bias has none to load.
    if rng.random() < 0.5:
        draft.fixed["bias"] = with_bias
        if draft.defaults:
            draft.defaults["bias"] = with_bias
        text += ", bias=bias"
    elif not with_bias:
        text += ", bias=False"
    layer = f"Conv{'Transpose' if transposed else ''}{d}d"
    draft.init.append(f"self.conv = nn.{layer}({text})")
    name = f"conv{'_transpose' if transposed else ''}{d}d"
    made.say(f"{name}_{kind}" if kind != "full" else name + habit(window), "self.conv(x)")
    made.dims = ["batch", out, *["?"] * d]
    made.extent = after(window, made.extent, transposed)


def pooling(made: Chain, d: int, way: str) -> None:
    """A max or average pooling of d dimensions: a layer or a function."""
    rng, draft = made.rng, made.draft
    window = drawn(made, d, pooling=True)
    names = ["kernel_size", "stride", "padding", "dilation"]
    if way == "avg":
        window.dilation = 1
        names.remove("dilation")
    if rng.random() < 0.3:
        text = ", ".join(
            str(getattr(window, n)) if n == "kernel_size" else f"{n}={getattr(window, n)}"
            for n in names
            if getattr(window, n) not in (None, {"padding": 0, "dilation": 1}.get(n, ""))
        )
        made.say(f"{way}_pool{d}d", f"F.{way}_pool{d}d(x, {text})")
    else:
        text = arguments(made, window, names, "")
        if "stride" not in text:
            window.stride = None
        if way == "avg" and rng.random() < 0.2:
            text += ", count_include_pad=False"
        draft.init.append(f"self.pool = nn.{way.title()}Pool{d}d({text})")
        made.say(f"{way}_pool{d}d", "self.pool(x)")
    made.dims = [*made.dims[:2], *["?"] * d]
    made.extent = after(window, made.extent, False)
    if min(made.extent) < 1:
        raise Misfit
