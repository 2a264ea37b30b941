"""Packed attention against a softmax written out, for every mix of lengths, and the choice of backend."""

import importlib

import pytest
import torch

from nanotriton.transformer import attention


def plain(q, k, v, lengths):
    """Softmax attention in fp64, one sequence and one query head at a time."""
    share, outs = q.shape[1] // k.shape[1], []
    for qs, ks, vs in zip(*(x.split(lengths) for x in (q, k, v)), strict=True):
        hidden = torch.ones(len(qs), len(qs)).triu(1).bool()
        heads = []
        for h in range(q.shape[1]):
            scores = (qs[:, h] @ ks[:, h // share].T) / q.shape[2] ** 0.5
            heads.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ vs[:, h // share])
        outs.append(torch.stack(heads, 1))
    return torch.cat(outs)


def cumulative(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


LENGTHS = [
    [7],
    [5, 5, 5],
    [20, 18, 19],
    [3, 40, 2, 38, 1, 1, 17],
    [9, 0, 4],
    [1],
]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
def test_matches_softmax_and_its_gradient(lengths, heads):
    torch.manual_seed(0)
    shapes = [(sum(lengths), h, 16) for h in (heads[0], heads[1], heads[1])]
    inputs = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    out = attention.packed(cumulative(lengths), max(lengths))(0, *inputs)
    want = plain(*inputs, lengths)
    torch.testing.assert_close(out, want)
    weight = torch.randn_like(want)
    for got, exact in zip(
        torch.autograd.grad((out * weight).sum(), inputs),
        torch.autograd.grad((want * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(got, exact)


def test_similar_lengths_take_one_call_and_little_padding(monkeypatch):
    calls = []
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def counted(q, *args, **kwargs):
        calls.append(q.shape[0] * q.shape[2])
        return sdpa(q, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    for lengths, most in (([100] * 64, 1), ([100, 90, 80] * 20, 1), ([1000, 10, 9, 8, 500, 12], 4)):
        calls.clear()
        x = torch.randn(sum(lengths), 1, 8)
        attention.packed(cumulative(lengths), max(lengths))(0, x, x, x)
        assert len(calls) <= most
        assert sum(calls) <= sum(lengths) / (1 - attention.MAX_PADDING)


def test_lengths_are_read_once_for_all_layers(monkeypatch):
    built = []
    monkeypatch.setattr(
        attention, "_PaddedGroups", lambda bounds, device: built.append(bounds) or (lambda q, k, v: q)
    )
    attend = attention.packed(cumulative([3, 2]), 3)
    for layer in range(4):
        attend(layer, *[torch.randn(5, 1, 8)] * 3)
    assert built == [[0, 3, 5]]


def test_forced_backends_that_cannot_run_say_why():
    x = torch.randn(4, 1, 8)
    for backend in ("flash2", "flash4", "varlen"):
        with pytest.raises(RuntimeError, match=f"{backend} needs CUDA and bf16"):
            attention.packed(cumulative([4]), 4, backend)(0, x, x, x)
    with pytest.raises(RuntimeError, match="unknown attention backend 'fast'; one of flash2"):
        attention.packed(cumulative([4]), 4, "fast")(0, x, x, x)
    assert attention.packed(cumulative([4]), 4, "sdpa")(0, x, x, x).shape == x.shape


def test_preference_and_its_one_line(monkeypatch, capsys):
    def absent():
        raise ImportError("No module named 'flash_attn'")

    def kernel(*args):
        return args

    attention.select.cache_clear()
    monkeypatch.setattr(attention, "LOADERS", {"flash2": absent, "flash4": absent, "varlen": lambda: kernel})
    assert [attention.select("cuda", torch.bfloat16) for _ in range(3)] == [kernel] * 3
    missing = "No module named 'flash_attn'"
    assert capsys.readouterr().err == f"attention: varlen (flash2: {missing}; flash4: {missing})\n"
    monkeypatch.setattr(attention, "LOADERS", dict.fromkeys(attention.BACKENDS[:-1], absent))
    attention.select.cache_clear()
    assert attention.select("cuda", torch.bfloat16) is None
    assert capsys.readouterr().err.startswith("attention: sdpa (flash2: No module named")
    with pytest.raises(RuntimeError, match="flash2 does not import: flash2: No module"):
        attention.select("cuda", torch.bfloat16, "flash2")
    assert attention.select("cuda", torch.float32) is None  # flash kernels have no fp32
    attention.select.cache_clear()


@pytest.mark.parametrize(("card", "first"), [((8, 0), "flash2"), ((9, 0), "flash4"), ((10, 3), "flash4")])
def test_the_card_decides_which_of_two_flash_attentions_is_first(monkeypatch, capsys, card, first):
    loaders = {name: lambda name=name: name for name in attention.BACKENDS[:-1]}
    monkeypatch.setattr(attention, "LOADERS", loaders)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: card)
    attention.select.cache_clear()
    assert attention.select("cuda", torch.bfloat16) == first
    assert capsys.readouterr().err == f"attention: {first}\n"
    attention.select.cache_clear()


def test_a_backend_is_chosen_that_takes_the_head_size(monkeypatch, capsys):
    loaders = {name: lambda name=name: name for name in attention.BACKENDS[:-1]}
    monkeypatch.setattr(
        attention, "LOADERS", loaders | {"flash2": lambda: importlib.import_module("not_installed")}
    )
    attention.select.cache_clear()
    sizes = (16, 32, 64, 80, 96, 128, 160, 192, 256, 100)
    chosen = {dim: attention.select("cuda", torch.bfloat16, head_dim=dim) for dim in sizes}
    assert [dim for dim, name in chosen.items() if name == "flash4"] == [16, 32, 64, 80, 96, 128]
    assert [dim for dim, name in chosen.items() if name == "varlen"] == [160, 192, 256] and chosen[
        100
    ] is None
    assert "attention: sdpa (flash2: not for heads of 100; flash4: not" in capsys.readouterr().err
    with pytest.raises(
        RuntimeError, match="flash4 takes head sizes that are multiples of 8 up to 128, not 192"
    ):
        attention.select("cuda", torch.bfloat16, "flash4", 192)
    attention.select.cache_clear()


def test_flash_kernels_are_called_as_both_generations_expect():
    def flash4(q, k, v, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal):
        assert causal and cu_seqlens_q is cu_seqlens_k and max_seqlen_q == max_seqlen_k == 4
        return q, None  # it returns the log-sum-exp too

    x = torch.randn(4, 1, 8)
    assert attention._flash(flash4, x, x, x, cumulative([4]), 4) is x
    assert attention._flash(lambda *a, **kw: flash4(*a, **kw)[0], x, x, x, cumulative([4]), 4) is x
