"""The lists behind the rules: the names that a candidate may use, and the torch functions that compute."""

import functools

from nanotriton.plan.aten import words
from nanotriton.rules.standard import held_back, held_by_another

JIT = words("triton.jit triton.runtime.jit.jit triton.runtime.jit")

BANNED_NAMES = words("exec eval compile __import__ open globals locals vars breakpoint")
REFLECTION = words("getattr setattr delattr")
# attributes that lead into frames, code and globals
_INSIDES = words("""
    f_globals f_locals f_back f_builtins f_code tb_frame tb_next gi_frame gi_code cr_frame cr_code ag_frame
    co_code func_globals mro
""")
# modules that other modules hold, as in `torch.os`
_HELD_MODULES = words("""
    os sys builtins subprocess socket ctypes importlib inspect gc io shutil signal threading multiprocessing
    pickle copyreg _os _sys _io bltns stdlib_re codecs atexit runpy codeop timeit pydoc pkgutil linecache
    marshal tempfile fcntl asyncio cProfile doctest _types _thread
""")
BANNED_ATTRIBUTES = _INSIDES | _HELD_MODULES
DUNDER_NAMES = words(
    "__name__ __doc__ __file__ __all__ __version__ __debug__ __class__ __constants__ __slots__"
)
DUNDER_ATTRIBUTES = words("""
    __init__ __name__ __qualname__ __module__ __class__ __doc__ __version__ __len__ __call__ __post_init__
    __new__ __setattr__ __getitem__ __setitem__ __repr__ __str__ __enter__ __exit__ __iter__ __next__
    __contains__ __setstate__ __getstate__ __add__ __sub__ __mul__ __and__ __or__ __xor__ __lshift__
    __rshift__
""")

# The modules that may be imported, by prefix: "torch.nn" admits torch.nn.functional.
MODULES = words("""
    torch.nn torch.autograd torch.amp torch.types torch.library torch.testing torch.profiler torch.Tensor
    torch.cuda torch.backends torch.utils._triton torch.utils._pytree torch.utils.checkpoint
    torch.utils.benchmark torch.version torch.special torch.linalg torch.fft torch.optim torch.random
    torch.overrides torch.distributed.tensor torch.functional torch.accelerator torch.compiler
    torch.distributions torch.nested torch.sparse torch.ao torch._inductor.runtime.triton_helpers
    torch._inductor.runtime.hints torch._C._cuda_getCurrentRawStream torch._C._dynamo.guards triton
    __future__ abc argparse bisect collections contextlib copy cmath dataclasses datetime decimal enum
    fractions functools hashlib heapq itertools json logging math numbers numpy packaging pprint random re
    statistics struct textwrap time typing typing_extensions warnings weakref
""")
STAR_MODULES = words("math typing")
# Of these modules only these attributes may be used.
PARTS = {
    "os": words("environ getenv linesep sep cpu_count path"),
    "sys": words("version version_info maxsize platform float_info byteorder"),
    "types": words("SimpleNamespace MappingProxyType NoneType"),
    "operator": words("""
        abs add and_ concat contains countOf eq floordiv ge getitem gt index indexOf inv invert is_ is_not
        itemgetter le lshift lt matmul mod mul ne neg not_ or_ pos pow rshift sub truediv truth xor
    """),
    "inspect": words("signature Parameter"),
    "threading": words("Lock RLock local get_ident"),
    "torch.fx": words("wrap"),  # a mark for who traces a module: it returns the function itself
    "importlib": words("util metadata"),
    "importlib.util": words("find_spec"),
    "importlib.metadata": words("version PackageNotFoundError"),
    # These mark functions for compilers. While recording, a function is called as it is.
    "torch.jit": words("""
        script script_if_tracing trace ignore unused export is_scripting is_tracing annotate Final interface
    """),
    "torch._dynamo": words("""
        disable is_compiling allow_in_graph disallow_in_graph forbid_in_graph graph_break mark_static
        mark_dynamic maybe_mark_dynamic mark_static_address assume_constant_result nonstrict_trace reset
        config
    """),
    "triton.compiler": words("errors CompilationError"),
}
# Parts of admitted modules that load, compile, capture or run code that the rules can't see.
REFUSED = words("""
    torch.load torch.save torch.hub torch.package torch.classes torch.serialization
    torch.multiprocessing torch.export torch.func.functional_call torch.from_file torch._export
    torch.ops.load_library torch.cuda.CUDAGraph torch.cuda.graph torch.cuda.graphs
    torch.cuda.make_graphed_callables torch.cuda.jiterator torch.cuda.nvrtc torch.cuda.cudart
    torch.utils.cpp_extension torch.utils.data torch.utils.dlpack torch.utils.model_zoo
    triton.compile triton.backends
    triton.tools.compile triton.tools.link triton.tools.disasm triton._C triton._internal_testing
    triton.runtime.interpreter triton.runtime.build triton.runtime.cache triton.knobs triton.experimental
    numpy.ctypeslib numpy.load numpy.save numpy.fromfile numpy.memmap numpy.f2py numpy.distutils numpy.lib
    typing.get_type_hints typing.ForwardRef logging.currentframe torch.fx torch.utils.collect_env
    torch.utils.bottleneck numpy.testing torch.utils.benchmark.Timer torch.utils.benchmark.timer
    torch.utils.benchmark.utils functools.singledispatch functools.singledispatchmethod
    dataclasses.make_dataclass typing.evaluate_forward_ref typing_extensions.get_type_hints
    typing_extensions.evaluate_forward_ref typing_extensions.ForwardRef typing_extensions.get_annotations
""")

# Names internal to a module that real kernels use all the same: by path, and by name wherever it stands.
INTERNAL = frozenset(path for path in MODULES if "._" in path)
_PRIVATE_FUNCTIONS = words("""
    _assert _check _check_is_size _check_type _check_value _int_mm _scaled_mm _weight_norm _softmax
    _log_softmax _reinterpret_tensor _DeviceGuard
""")
# names that layers copied from torch.nn take from there
_PRIVATE_OF_LAYERS = words("""
    _calculate_fan_in_and_fan_out _calculate_correct_fan _single _pair _triple _quadruple _ntuple
    _reverse_repeat_tuple _size_1_t _size_2_t _size_3_t _size_4_t _size_any_t _ratio_2_t _ratio_3_t _ConvNd
    _ConvTransposeNd _BatchNorm _NormBase _Loss
""")
PRIVATE = _PRIVATE_FUNCTIONS | _PRIVATE_OF_LAYERS


DEEPEST = 5  # parts of the longest name in a table of paths


def under(path: str, prefixes: frozenset[str]) -> bool:
    """Whether the dotted path is one of the prefixes, or below one. They have DEEPEST parts at most."""
    parts = path.split(".", DEEPEST)[:DEEPEST]  # a candidate may spell a path of thousands
    return any(".".join(parts[:n]) in prefixes for n in range(1, len(parts) + 1))


@functools.lru_cache(maxsize=512)
def refused(path: str, importing: bool) -> str | None:
    """One line that says why the dotted path is refused, or None.

    importing: the path stands in an import statement, not in an expression.
    """
    root, *rest = path.split(".")
    if (owner := _partial(path)) is not None:
        return _refused_part(path, owner, importing)
    if root in rest:  # torch.torch, nn.modules.module.torch: the same module again
        last = len(rest) - rest[::-1].index(root)
        return refused(".".join([root, *rest][last:]), importing)
    if hidden := BANNED_ATTRIBUTES.intersection(rest):
        return f"{path} is not allowed: {min(hidden)} reaches out of the candidate; leave it out"
    if (inner := held_by_another(path)) is not None and (why := refused(inner, importing)):
        return why
    if under(path, REFUSED):
        return f"{path} is not allowed: it runs code that is not this kernel; launch your own"
    if importing and not _may_import(path):
        return f"import of {path} is not allowed; torch, triton, math, typing and a few others are"
    if inside := held_back(path):
        return f"{path} is not allowed: {inside} is internal to {root}; use what {root} documents"
    private = [name for name in rest if _is_private(name)]
    if private and not _used_all_the_same(path):
        return f"{path} is not allowed: {private[0]} is internal to {root}; use what {root} documents"
    return None


def _partial(path: str) -> str | None:
    """The longest of PARTS that a dotted path is, or is below, or None."""
    owners = [owner for owner in PARTS if path == owner or path.startswith(owner + ".")]
    return max(owners, key=len, default=None)


def _refused_part(path: str, owner: str, importing: bool) -> str | None:
    """As `refused`, of a path at or below one of PARTS."""
    first = path.removeprefix(owner).strip(".").split(".")[0]
    if first in PARTS[owner] or (not first and importing):
        return None
    what = path if first else f"{path} (all of it)"
    return f"{what} is not allowed; of {owner}, only {', '.join(sorted(PARTS[owner]))}"


def _may_import(path: str) -> bool:
    """Whether the path is torch, a public name of torch itself, or under a module of the list."""
    if path == "torch" or under(path, MODULES):
        return True
    root, *rest = path.split(".")
    return root == "torch" and len(rest) == 1 and rest[0][0] != "_"


def _is_private(name: str) -> bool:
    return name[0] == "_" and not name.endswith("__") and name not in PRIVATE


def _used_all_the_same(path: str) -> bool:
    """Whether an internal path is one of INTERNAL, below one, or on the way to one.

    What a kernel calls of triton.language is in its TTIR, whatever its name.
    """
    if path.startswith("triton.language."):
        return True
    return under(path, INTERNAL) or any(known.startswith(path + ".") for known in INTERNAL)


_ELEMENTWISE = """
    abs absolute acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_or bitwise_xor
    ceil celu clamp clamp_max clamp_min clip copysign cos cosh div divide elu eq erf erfc exp exp2 expm1 floor
    fmax fmin fmod ge gelu glu greater gt hardshrink hardsigmoid hardswish hardtanh heaviside hypot isfinite
    isinf isnan ldexp le leaky_relu lerp less lgamma log log10 log1p log2 log_softmax logaddexp logical_and
    logical_not logical_or logical_xor logit logsigmoid lt masked_fill maximum minimum mish mul multiply ne
    neg nan_to_num pow prelu reciprocal relu relu6 remainder round rrelu rsqrt rsub selu sigmoid sign silu sin
    sinc sinh softmax softmin softplus softshrink softsign sqrt square sub subtract tan tanh tanhshrink
    threshold tril triu true_divide trunc where xlogy
"""
_REDUCTIONS = """
    all amax amin aminmax any argmax argmin cdist count_nonzero cummax cummin cumprod cumsum diff dist
    logcumsumexp logsumexp max mean median min mode nanmean nansum norm prod quantile std std_mean sum trace
    var var_mean vander
"""
_MATMULS = """
    addbmm addmm addmv addr baddbmm bilinear bmm chain_matmul dot einsum inner kron linear matmul mm mv outer
    tensordot multi_dot scaled_dot_product_attention multi_head_attention_forward
"""
_OTHERS = """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d affine_grid avg_pool1d avg_pool2d avg_pool3d batch_norm binary_cross_entropy
    binary_cross_entropy_with_logits bincount conv1d conv2d conv3d conv_transpose1d conv_transpose2d
    conv_transpose3d cosine_embedding_loss cosine_similarity cross cross_entropy ctc_loss dropout embedding
    embedding_bag fold gather gaussian_nll_loss grid_sample group_norm gumbel_softmax hinge_embedding_loss
    histc huber_loss index_add index_select instance_norm interpolate kl_div l1_loss layer_norm
    local_response_norm lp_pool1d lp_pool2d margin_ranking_loss max_pool1d max_pool2d max_pool3d mse_loss
    nll_loss normalize one_hot pairwise_distance pixel_shuffle poisson_nll_loss rms_norm scatter scatter_add
    scatter_reduce searchsorted smooth_l1_loss sort argsort take_along_dim topk triplet_margin_loss unfold
    unique upsample
"""
# Of reductions only those count here that are seldom the sum of a small result; a plan tells.
_COMPUTING = words(f"{_ELEMENTWISE} {_REDUCTIONS} {_MATMULS} {_OTHERS}") - words("""
    all amax amin any count_nonzero cumsum logsumexp max mean min sum
""")

# Methods that nothing but a tensor has. A `.sum()`, `.max()` or `.add()` may be a set's, an array's or a
# tl.tensor's; the rules on the plan know.
_METHODS = """
    addmm_ addcmul_ relu relu_ sigmoid sigmoid_ softmax log_softmax masked_fill masked_fill_ cumprod
    rsqrt
"""
COMPUTING_METHODS = words(f"{_MATMULS} {_METHODS}") - {"dot", "linear", "inner", "outer"}
COMPUTING_LAYERS = words("""
    Linear Bilinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d LSTM GRU RNN LSTMCell
    GRUCell RNNCell MultiheadAttention Transformer TransformerEncoder TransformerEncoderLayer Embedding
    EmbeddingBag BatchNorm1d BatchNorm2d BatchNorm3d LayerNorm RMSNorm GroupNorm InstanceNorm1d InstanceNorm2d
    InstanceNorm3d LocalResponseNorm MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d
    AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d
    AdaptiveMaxPool3d ReLU ReLU6 GELU SiLU Mish ELU SELU CELU Sigmoid Tanh Softmax LogSoftmax Softplus
    Softsign Hardtanh Hardswish Hardsigmoid LeakyReLU LogSigmoid MSELoss L1Loss SmoothL1Loss HuberLoss
    CrossEntropyLoss NLLLoss KLDivLoss BCELoss CosineSimilarity
""")


def computes(path: str) -> bool:
    """Whether a dotted path names a torch function that computes."""
    head, _, last = path.rpartition(".")
    if head.startswith(("torch.linalg", "torch.fft", "torch.special", "torch.ops.aten")):
        return True
    return head in ("torch", "torch.nn.functional", "torch.Tensor") and last.rstrip("_") in _COMPUTING
