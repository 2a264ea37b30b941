"""Triton's compiler from TTIR to a cubin. It needs neither Triton's cache and driver, nor a GPU or torch."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget, Language
from triton.compiler.compiler import IRSource, make_backend


def compile_ttir(
    text: str,
    target: GPUTarget,
    options: dict[str, Any],
    check: Callable[[IRSource], None] | None = None,
    last: str = "cubin",
) -> tuple[Any, dict, Any]:
    """(cubin, metadata, all options) of the one kernel in `text`.

    options: of the launch; None stands for Triton's default.
    check: is called with MLIR's reading of the text before that is compiled.
    last: the stage after which to stop, whose module then stands in place of the cubin.
    Raises all that Triton and `check` raise. Hostile text can also kill the process.
    """
    backend, context = make_backend(target), ir.context()
    given = {name: value for name, value in options.items() if value is not None}
    options = backend.parse_options(given)
    stages: dict = {}
    backend.add_stages(stages, options, Language.TRITON)
    metadata: dict = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ttir"
        path.write_text(text)
        source = IRSource(str(path), context, backend)  # parses it, and MLIR verifies it
        module = source.make_ir(target, options, {}, {}, context)
        if check is not None:
            check(source)
        for name, stage in stages.items():
            if name != "ttir":  # that stage made the text
                module = stage(module, metadata)
            if name == last:
                break
    return module, metadata, options
