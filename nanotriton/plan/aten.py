"""ATen calls as data: the operators a plan may name, and their arguments as JSON.

None, True, 3, 2.5, "sum", [..]   themselves (an integer has at most 64 bits, a float is finite)
{"t": 4}                          tensor 4 of the plan
{"float": "inf" | "-inf" | "nan"} {"complex": [re, im]}
{"dtype": "float32"} {"layout": "strided"} {"memory_format": "contiguous_format"} {"device": true}
{"tuple": [..]} {"dict": [[key, value], ..]}    only in a forward's arguments and results
"""

import math
from collections.abc import Callable
from typing import Any

import torch


def words(text: str) -> frozenset[str]:
    """A table of words, written as one text."""
    return frozenset(text.split())


# Pure functions of their arguments on one device, with results whose shapes don't depend on data.
# No operator of this list reads a file, touches the host, draws random numbers, changes a tensor's storage or
# registers anything. None trusts offsets or pivots that it is given.
PURE = """
    __and__ __lshift__ __or__ __rshift__ __xor__ _adaptive_avg_pool2d _adaptive_avg_pool3d _addmm_activation
    _cdist_forward _conj_physical _euclidean_dist _fft_c2c _fft_c2r _fft_r2c _int_mm _linalg_det _linalg_eigh
    _linalg_slogdet _linalg_solve_ex _linalg_svd _log_softmax _native_batch_norm_legit
    _native_batch_norm_legit_no_training _pdist_forward _prelu_kernel _safe_softmax
    _scaled_dot_product_attention_math _scaled_mm _softmax _to_copy _trilinear _unsafe_index _unsafe_index_put
    _unsafe_view _weight_norm_interface abs acos acosh adaptive_max_pool2d adaptive_max_pool3d add addbmm
    addcdiv addcmul addmm addmv addr all amax amin aminmax angle any arange argmax argmin argsort
    as_strided_copy as_strided_scatter asin asinh atan atan2 atanh avg_pool2d avg_pool3d baddbmm
    binary_cross_entropy bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor
    bmm bucketize cat ceil celu clamp clamp_max clamp_min clone col2im complex constant_pad_nd convolution
    copy copysign cos cosh cummax cummin cumprod cumsum deg2rad diag_embed diagonal_copy diagonal_scatter
    digamma dist div dot elu embedding eq erf erfc erfinv exp exp2 expand_copy expm1 eye fill flip floor
    floor_divide fmax fmin fmod frac full full_like gather ge gelu glu grid_sampler_2d gt hardshrink
    hardsigmoid hardswish hardtanh heaviside histc huber_loss hypot i0 igamma igammac im2col index index_add
    index_copy index_fill index_put index_select isfinite isin isinf isnan isneginf isposinf kthvalue le
    leaky_relu lerp lgamma linalg_cholesky_ex linalg_cross linalg_householder_product linalg_inv_ex
    linalg_ldl_factor_ex linalg_lu linalg_lu_factor_ex linalg_qr linalg_solve_triangular linalg_vector_norm
    linspace log log10 log1p log2 log_sigmoid_forward logaddexp logaddexp2 logcumsumexp logical_and
    logical_not logical_or logical_xor logit logspace logsumexp lt masked_fill masked_scatter max
    max_pool2d_with_indices max_pool3d_with_indices maximum mean median min minimum mish mm mode mse_loss mul
    multi_margin_loss mv nan_to_num nanmedian native_batch_norm native_group_norm native_layer_norm ne neg
    new_full new_ones new_zeros nextafter nll_loss2d_forward nll_loss_forward norm ones ones_like permute_copy
    polar polygamma pow prelu prod put rad2deg reciprocal reflection_pad1d reflection_pad2d reflection_pad3d
    relu remainder renorm repeat repeat_interleave replication_pad1d replication_pad2d replication_pad3d roll
    round rsqrt rsub scalar_tensor scatter scatter_add scatter_reduce searchsorted select_scatter sgn sigmoid
    sign signbit silu sin sinc sinh slice_scatter smooth_l1_loss soft_margin_loss softplus softshrink sort
    special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_entr
    special_erfcx special_i0e special_i1 special_i1e special_log_ndtr special_modified_bessel_i0
    special_modified_bessel_k0 special_ndtri special_xlog1py special_zeta sqrt square stack std std_mean sub
    sum t_copy take tan tanh threshold topk trace triangular_solve tril tril_indices triu triu_indices trunc
    unfold_copy upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d upsample_trilinear3d var var_mean vdot view_copy where xlogy zero zeros zeros_like
"""
IN_PLACE = """
    abs add addcdiv addcmul addmm baddbmm bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu clamp
    clamp_max clamp_min copy cos cumsum div elu embedding_renorm eq erf exp exp2 expm1 fill floor floor_divide
    fmod ge gelu gt hardsigmoid hardswish hardtanh index_add index_copy index_fill index_put le leaky_relu
    lerp log log10 log1p log2 logical_and logical_not logical_or lt masked_fill masked_scatter mish mul
    nan_to_num ne neg pow reciprocal relu remainder round rsqrt scatter scatter_add scatter_reduce sigmoid
    sign silu sin sqrt square sub tan tanh threshold tril triu trunc zero
"""
ALLOWED = frozenset([*PURE.split(), *(name + "_" for name in IN_PLACE.split())])

MAX_DEPTH = 12
MAX_ITEMS = 100_000
LAYOUTS = {"strided": torch.strided}
FORMATS = {
    name: getattr(torch, name)
    for name in ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
}


class PlanError(ValueError):
    """The bytes are no valid plan. The message is one line that says why."""


def check(condition: bool, message: str) -> None:
    """Raise PlanError with `message` unless the condition holds."""
    if not condition:
        raise PlanError(message)


# tag of an encoded value: torch's type of it. Values of these types print as "torch." and their name.
NAMED = {"dtype": torch.dtype, "memory_format": torch.memory_format, "layout": torch.layout}


def encode(
    value: Any, tensor_id: Callable[[torch.Tensor], int], is_device: Callable[[torch.device], bool]
) -> Any:
    """One argument of a call as JSON.

    tensor_id: the plan's id of a tensor. is_device: whether a device is the one that the plan is for.
    Raises TypeError, with the name of the value's type, if a plan has no place for it.
    """
    if isinstance(value, torch.Tensor):
        return {"t": tensor_id(value)}
    if isinstance(value, list | tuple):
        return [encode(item, tensor_id, is_device) for item in value]
    if isinstance(value, torch.device) and is_device(value):
        return {"device": True}
    for tag, kind in NAMED.items():
        if isinstance(value, kind):
            return {tag: str(value).removeprefix("torch.")}
    return _encode_plain(value)


def _encode_plain(value: Any) -> Any:
    """None, a boolean, a string or a number as JSON."""
    if value is None or type(value) is bool or type(value) is str:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    raise TypeError(type(value).__name__)


def encode_tree(value: Any, tensor_id: Callable[[torch.Tensor], int]) -> Any:
    """A forward's arguments or result as JSON: `encode`, but tuples stay tuples and dicts are allowed."""
    if isinstance(value, tuple):
        return {"tuple": [encode_tree(item, tensor_id) for item in value]}
    if isinstance(value, list):
        return [encode_tree(item, tensor_id) for item in value]
    if isinstance(value, dict):
        pairs = [[encode_tree(k, tensor_id), encode_tree(v, tensor_id)] for k, v in value.items()]
        return {"dict": pairs}
    return encode(value, tensor_id, lambda device: True)


def decode(value: Any, tensor: Callable[[int], torch.Tensor], device: torch.device) -> Any:
    """The inverse of `encode` and `encode_tree` for a checked value."""
    if isinstance(value, list):
        return [decode(item, tensor, device) for item in value]
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    if tag == "t":
        return tensor(content)
    if tag == "tuple":
        return tuple(decode(item, tensor, device) for item in content)
    if tag == "dict":
        return {decode(k, tensor, device): decode(v, tensor, device) for k, v in content}
    return _decode_plain(tag, content, device)


def _decode_plain(tag: str, content: Any, device: torch.device) -> Any:
    if tag == "device":
        return device
    if tag == "float":
        return float(content)
    if tag == "complex":
        return complex(*content)
    if tag == "dtype":
        return getattr(torch, content)
    return LAYOUTS[content] if tag == "layout" else FORMATS[content]


def check_value(value: Any, tensors: int, where: str) -> None:
    """Raise PlanError (one line) unless `value` is an encoded value whose tensor ids are below `tensors`."""
    budget = [MAX_ITEMS]

    def visit(v: Any, depth: int) -> None:
        budget[0] -= 1
        check(depth <= MAX_DEPTH and budget[0] >= 0, f"{where}: an argument is nested too deep or too long")
        if isinstance(v, list):
            for item in v:
                visit(item, depth + 1)
        elif type(v) is dict and len(v) == 1:
            visit_tagged(v, depth)
        else:
            integer = type(v) is int and -(2**63) <= v < 2**64
            check(
                v is None or integer or type(v) in (bool, float, str), f"{where}: bad argument {str(v)[:80]}"
            )

    def visit_tagged(v: dict, depth: int) -> None:
        ((tag, content),) = v.items()
        if tag not in ("tuple", "dict") or type(content) is not list:
            check(tag in TAGS and TAGS[tag](content, tensors), f"{where}: bad argument {str(v)[:80]}")
            return
        for item in content:
            if tag == "dict":
                pair = type(item) is list and len(item) == 2
                check(
                    pair and type(item[0]) in (str, int, bool),
                    f"{where}: a dictionary's keys are strings or integers",
                )
            visit(item, depth + 1)

    visit(value, 0)


def rehearse(
    op: str, args: list, kwargs: dict, tensor: Callable[[int], torch.Tensor]
) -> list[torch.Tensor | None]:
    """The results of a checked call on meta tensors: shapes and dtypes without data.

    tensor(i): a meta tensor for tensor i.
    Raises PlanError if the call is not possible. It also does if the call would change the shape of a tensor
    that it is given, as `out=` does.
    """
    packet, overload = op.split(".")
    func = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    check(isinstance(func, torch._ops.OpOverload), f"there is no operator {op}")
    given = {i: tensor(i) for i in tensor_ids([args, kwargs])}
    layouts = {i: (t.shape, t.stride()) for i, t in given.items()}
    device = torch.device("meta")
    try:
        keywords = {k: decode(v, given.get, device) for k, v in kwargs.items()}
        result = func(*decode(args, given.get, device), **keywords)
    except Exception as error:  # torch's meta functions, written in Python, also assert and divide by zero
        raise PlanError(f"aten.{op}: {' '.join(str(error).split())[:200]}") from None
    for i, t in given.items():
        unchanged = (t.shape, t.stride()) == layouts[i]
        check(unchanged, f"aten.{op} changes the shape of a tensor that it is given")
    return list(result) if isinstance(result, tuple | list) else [result]


# tag: whether its content is well-formed in a plan of `tensors` tensors
TAGS = {
    "t": lambda x, tensors: type(x) is int and 0 <= x < tensors,
    "float": lambda x, _: x in ("inf", "-inf", "nan"),
    "complex": lambda x, _: type(x) is list and len(x) == 2 and all(type(part) is float for part in x),
    "dtype": lambda x, _: type(x) is str and isinstance(getattr(torch, x, None), torch.dtype),
    "layout": lambda x, _: x in LAYOUTS,
    "memory_format": lambda x, _: x in FORMATS,
    "device": lambda x, _: x is True,
}


def tensor_ids(value: Any) -> list[int]:
    """The ids of the tensors that an encoded value names, in order."""
    if isinstance(value, dict):
        if type(value.get("t")) is int and len(value) == 1:
            return [value["t"]]
        value = list(value.values())
    if not isinstance(value, list):
        return []
    ids = []
    for item in value:
        ids += tensor_ids(item)
    return ids
