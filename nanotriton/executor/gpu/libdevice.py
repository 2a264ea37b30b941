"""CUDA's math library, libdevice, linked into a kernel without reading all of it each time.

For each kernel that calls one of its functions (tanh, erf, sin, ...) Triton parses the whole library. That
takes 60 ms of CPU time, a third of a compilation. Here the base takes the library's text apart once, which
takes 0.2 s. For each kernel the parts that it reaches are put together again, in 2 ms.
Definitions, their order and the kernel's flags (`nvvm-reflect-ftz`) are the same as with the whole library.
So is the cubin.
"""

import functools
import inspect
import logging
import re
import tempfile
from pathlib import Path

from triton._C.libtriton import ir, llvm
from triton.backends.nvidia.compiler import CUDAOptions
from triton.language.extra.cuda import libdevice

log = logging.getLogger(__name__)
WHOLE = llvm.link_extern_libs
PATHS = [path for _, path in CUDAOptions().extern_libs]  # of the libraries that Triton links
PIECE = re.compile(r"^(?:define (?:.*\n)+?}|(?:declare |@).*)$", re.M)
NAME = re.compile(r"@([\w.$]+)")


def install() -> None:
    """Let this process link every kernel in this way from here on."""
    llvm.link_extern_libs = link


def link(module, paths: list[str]) -> None:
    """Give `module` the definitions of the functions that it declares, as Triton's link_extern_libs does.

    The whole library is linked wherever anything is unlike the libdevice that was taken apart.
    """
    if paths == PATHS:
        try:
            with tempfile.NamedTemporaryFile("w", suffix=".ll") as file:
                file.write(slim(module))
                file.flush()
                return WHOLE(module, [file.name])
        # a name that we do not know, no room for the file, or a text that LLVM cannot read
        except (KeyError, OSError, ValueError) as error:
            log.debug("linked with all of libdevice: %r", error)
    WHOLE(module, paths)


def slim(module) -> str:
    """LLVM's text of the library that `module` needs. Raises KeyError for a name that we do not know."""
    pieces, common = take_apart()
    wanted = []
    for function in module.get_functions():
        if function.is_declaration() and not function.name.startswith("llvm."):
            wanted.append(function.name)
    reached = set()
    while wanted:
        name = wanted.pop()
        if name not in reached:
            reached.add(name)
            _, uses = pieces[name]
            wanted += uses
    needed = [text for name, (text, _) in pieces.items() if name in reached]
    return "\n".join([*common, *needed])


@functools.cache
def take_apart() -> tuple[dict[str, tuple[str, list[str]]], list[str]]:
    """({name: (its LLVM text, the names in it)}, the lines that every part needs).

    The names are all that libdevice's functions reach, in the library's order. Both are empty if this Triton
    differs from the ones that we know: kernels are then linked with the whole library.
    """
    try:
        text = whole_text()
    except Exception as error:
        log.debug("libdevice is linked as a whole: %s: %s", type(error).__name__, error)
        return {}, []
    pieces = {}
    for piece in PIECE.findall(text):
        name, *uses = NAME.findall(piece)
        if name.startswith("__nv_"):
            # linking made every function internal, and a kernel would not find an internal one
            piece = piece.replace("define internal ", "define ", 1)
        pieces[name] = piece, uses
    common = []
    for line in PIECE.sub("", text).splitlines():
        if line.startswith(("%", "attributes ", "!")) and not line.startswith("!llvm.module.flags"):
            common.append(line)
    return pieces, common


def whole_text() -> str:
    """LLVM's text of libdevice, not optimised.

    To get it, the library is linked into a module that declares every function that Triton knows.
    """
    names = sorted(set(re.findall(r'"(__nv_\w+)"', inspect.getsource(libdevice))))
    context = ir.context()
    ir.load_dialects(context)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "declarations.mlir")
        # a declaration needs no true type: the definition's replaces it
        path.write_text("".join(f"llvm.func @{name}()\n" for name in names))
        module = ir.parse_mlir_module(str(path), context)
    llvm.init_targets()
    owner = llvm.context()  # it has to outlive its module
    linked = llvm.to_module(module, owner)
    llvm.attach_datalayout(linked, "nvptx64-nvidia-cuda", "", "")  # the layout of every GPU
    WHOLE(linked, PATHS)
    return str(linked)
