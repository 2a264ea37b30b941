"""Triton's compiler from TTIR to a cubin, without its cache and its driver, without a GPU and torch."""

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
    check: Callable[[IRSource], None] = lambda source: None,
) -> tuple[bytes, dict, Any]:
    """(cubin, metadata, all options) of the one kernel in `text`.

    options: of the launch; None is the default. check: called with MLIR's reading of the text, before that is
    compiled. Raises what Triton and `check` raise; hostile text can also kill the process.
    """
    backend, context = make_backend(target), ir.context()
    options = backend.parse_options({k: v for k, v in options.items() if v is not None})
    stages: dict = {}
    backend.add_stages(stages, options, Language.TRITON)
    metadata: dict = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ttir"
        path.write_text(text)
        source = IRSource(str(path), context, backend)  # parses, with MLIR's own verifier
        module = source.make_ir(target, options, {}, {}, context)
        check(source)
        for name, stage in stages.items():
            if name != "ttir":  # done where the TTIR came from
                module = stage(module, metadata)
    return module, metadata, options
