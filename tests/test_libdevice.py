"""Kernels linked with the part of libdevice that they reach have the cubins that they have with all of it, and no line info changes none of their code."""

import struct
from dataclasses import replace

import pytest
import triton
from triton._C.libtriton import llvm

from nanotriton.executor.common.card import DEFAULT, Card
from nanotriton.executor.gpu import compile_server, libdevice
from nanotriton.executor.gpu.compiler import Binary, compile_kernel
from nanotriton.executor.sandbox import files
from nanotriton.executor.sandbox.servers import CompileServers
from nanotriton.executor.sandbox.zygote import Zygote
from nanotriton.plan.plan import Kernel
from nanotriton.plan.signature import signature
from tests.test_compile_servers import GOOD, LIMITS, TTIR, collect

CASES = {
    "exp": ("f32", ["__nv_expf"]),
    "tanh": ("f32", ["__nv_tanhf"]),
    "erf": ("f32", ["math.erf"]),
    "sin": ("f32", ["__nv_sinf"]),
    "pow": ("f32", ["__nv_powf"]),
    "log1p": ("f32", ["__nv_log1pf"]),
    "rsqrt": ("f32", ["__nv_rsqrtf"]),
    "double": ("f64", ["__nv_lgamma"]),
    "two that share a part": ("f32", ["__nv_sinf", "__nv_cosf"]),
    "not among ours": ("f32", ["__nv_expf", "__nv_fmaxf"]),
    "none": ("f32", ["math.exp"]),
}


@pytest.fixture
def linked(monkeypatch):
    """What compilations link, our way until the test is over. Without line info, which names a folder that has another name each time."""
    libdevice.take_apart()
    paths = []
    monkeypatch.setattr(
        libdevice,
        "WHOLE",
        lambda module, what, whole=libdevice.WHOLE: paths.append(what) or whole(module, what),
    )
    monkeypatch.setattr(llvm, "link_extern_libs", libdevice.link)
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.disable_line_info = True
        yield paths


def ttir(kind: str, calls: list[str]) -> str:
    """A kernel on f32 or f64 that applies one function after another: an operation, or a function of libdevice's (of two arguments: pow, fmax)."""
    lines, last = [], "%x"
    for i, call in enumerate(calls):
        ty, args = f"tensor<128x{kind}>", [last] * (1 + call.endswith(("powf", "fmaxf")))
        extern = f'tt.extern_elementwise {", ".join(args)} {{libname = "", libpath = "", pure = true, symbol = "{call}"}} : ({", ".join([ty] * len(args))}) -> {ty}'
        lines.append(f"%v{i} = {extern if call.startswith('__nv_') else f'{call} {last} : {ty}'}")
        last = f"%v{i}"
    return (
        TTIR.replace("f32", kind)
        .replace(f"arith.addf %x, %x : tensor<128x{kind}>", f"arith.addf {last}, %x : tensor<128x{kind}>")
        .replace("%y =", "\n".join([*lines, "%y ="]))
    )


def compiled(text: str, card: Card = DEFAULT) -> Binary:
    return compile_kernel(Kernel(GOOD["name"], text, GOOD["options"], signature(text, GOOD["name"])), card)


@pytest.mark.parametrize("name", CASES)
def test_a_part_of_libdevice_makes_the_same_cubin_as_all_of_it(name, linked, monkeypatch):
    text = ttir(*CASES[name])
    ours, paths = compiled(text), list(linked)
    monkeypatch.setattr(llvm, "link_extern_libs", libdevice.WHOLE)
    assert ours == compiled(text) and linked[len(paths) :] == [libdevice.PATHS] * len(paths)
    assert len(paths) == (name != "none") and all(
        (what == libdevice.PATHS) == (name == "not among ours") for what in paths
    )


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (10, 0), (12, 0)])
def test_a_part_of_libdevice_is_the_same_for_all_cards(capability, linked, monkeypatch):
    text, card = (
        ttir("f32", ["__nv_tanhf", "__nv_powf"]),
        replace(DEFAULT, major=capability[0], minor=capability[1]),
    )
    ours = compiled(text, card)
    monkeypatch.setattr(llvm, "link_extern_libs", libdevice.WHOLE)
    assert ours == compiled(text, card) and linked[0] != libdevice.PATHS and linked[1:] == [libdevice.PATHS]


@pytest.mark.parametrize("broken", ["whole_text", "slim"])
def test_what_goes_wrong_is_linked_with_all_of_libdevice(broken, linked, monkeypatch):
    def fails(*args):
        raise RuntimeError("not the Triton that this was written for")

    monkeypatch.setattr(
        libdevice, broken, fails if broken == "whole_text" else lambda module: "define nonsense"
    )
    monkeypatch.setattr(libdevice, "take_apart", libdevice.take_apart.__wrapped__)
    assert compiled(ttir("f32", ["__nv_tanhf"])).cubin[:4] == b"\x7fELF" and linked[-1] == libdevice.PATHS


def test_compile_servers_link_a_part_and_make_no_line_info(linked, tmp_path):
    text = ttir("f32", ["__nv_tanhf"])
    zygote = Zygote({"compile": compile_server.compile_server}, files.readable_paths())
    pool = CompileServers(zygote, str(tmp_path), 1)
    pool.submit(0, GOOD | {"ttir": text}, LIMITS)
    theirs = Binary.from_bytes(collect(pool, 1)[0].payload, DEFAULT)
    zygote.sock.close()
    assert theirs == compiled(text)
    triton.knobs.compilation.disable_line_info = False
    full = compiled(text)
    assert (
        len(full.cubin) > len(theirs.cubin)
        and (code := sections(full.cubin)[".text.kernel"])
        and code == sections(theirs.cubin)[".text.kernel"]
    )


def sections(elf: bytes) -> dict[str, bytes]:
    (start,), (size, count, names) = struct.unpack_from("<Q", elf, 40), struct.unpack_from("<3H", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, start + i * size) for i in range(count)]
    name = lambda at: elf[headers[names][4] + at :].split(b"\0", 1)[0].decode()
    return {name(h[0]): elf[h[4] : h[4] + h[5]] for h in headers}
