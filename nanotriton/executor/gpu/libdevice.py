"""CUDA's math library, libdevice, linked into a kernel without reading all of it each time.

For each kernel that calls one of its functions (tanh, erf, sin, ...) Triton parses the whole library: 60 ms of CPU time, a third of a
compilation. Here its text is taken apart once (0.2 s, in the base), and what a kernel reaches is put together again: 2 ms. Definitions, their
order and the kernel's flags (`nvvm-reflect-ftz`) are the same as with the whole library, and so is the cubin.
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
PATHS = [path for _, path in CUDAOptions().extern_libs]  # what Triton links
PIECE = re.compile(r"^(?:define (?:.*\n)+?}|(?:declare |@).*)$", re.M)
NAME = re.compile(r"@([\w.$]+)")


def install() -> None:
    """From here on this process links kernels so."""
    llvm.link_extern_libs = link


def link(module, paths: list[str]) -> None:
    """In place of Triton's: `module` gets the definitions that it declares, from the whole library if anything is not as it is here."""
    if paths == PATHS:
        try:
            with tempfile.NamedTemporaryFile("w", suffix=".ll") as file:
                file.write(slim(module))
                file.flush()
                return WHOLE(module, [file.name])
        # a name that ours lacks, no room, text that LLVM does not read
        except (KeyError, OSError, ValueError) as error:
            log.debug("linked with all of libdevice: %r", error)
    WHOLE(module, paths)


def slim(module) -> str:
    """A library of what `module` needs. Raises KeyError if a name is not among ours."""
    pieces, common = take_apart()
    wanted = [f.name for f in module.get_functions() if f.is_declaration() and not f.name.startswith("llvm.")]
    reached = set()
    while wanted:
        name = wanted.pop()
        if name not in reached:
            reached.add(name)
            wanted += pieces[name][1]
    return "\n".join([*common, *(text for name, (text, _) in pieces.items() if name in reached)])


@functools.cache
def take_apart() -> tuple[dict[str, tuple[str, list[str]]], list[str]]:
    """{name: (its LLVM text, the names in it)} of all that libdevice's functions reach, in its order; and the lines that any part needs.

    Nothing at all if Triton is not as it was: kernels are then linked with the whole library."""
    try:
        text = whole_text()
    except Exception as error:
        log.debug("libdevice is linked as a whole: %s: %s", type(error).__name__, error)
        return {}, []
    pieces = {}
    for piece in PIECE.findall(text):
        name, *uses = NAME.findall(piece)
        public = name.startswith("__nv_")  # linking made all of it internal, in which nothing would be found
        pieces[name] = (piece.replace("define internal ", "define ", 1) if public else piece), uses
    rest = PIECE.sub("", text).splitlines()
    return pieces, [
        line
        for line in rest
        if line.startswith(("%", "attributes ", "!")) and not line.startswith("!llvm.module.flags")
    ]


def whole_text() -> str:
    """LLVM's text of libdevice, not optimised: as it is linked into a module that declares all functions that Triton knows."""
    names = sorted(set(re.findall(r'"(__nv_\w+)"', inspect.getsource(libdevice))))
    context = ir.context()
    ir.load_dialects(context)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "declarations.mlir")
        # pointers are opaque: the definition's type replaces this one
        path.write_text("".join(f"llvm.func @{name}()\n" for name in names))
        module = ir.parse_mlir_module(str(path), context)
    llvm.init_targets()
    owner = llvm.context()  # has to outlive its module
    linked = llvm.to_module(module, owner)
    llvm.attach_datalayout(linked, "nvptx64-nvidia-cuda", "", "")  # of no GPU: all have the same layout
    WHOLE(linked, PATHS)
    return str(linked)
