"""Rows as small as an eps: another eps, or one at another place, is wrong, and honest kernels pass with every secret."""

import pytest
import torch
import torch.nn.functional as F

from nanotriton.executor.judge.inputs import stress
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.trials.faint import SIGMAS, SLOPE, regress
from tests.test_draws import accepted_by_many, judge, refused, task


def two_passes(x, dims, eps, place=torch.rsqrt):
    wide = x.float()
    off = wide - wide.mean(dims, keepdim=True)
    return (off * place(off.square().mean(dims, keepdim=True) + eps)).to(x.dtype)


def welford(m, x):
    """Mean and variance element by element, in float32."""
    mean, squares = torch.zeros(len(x), 1), torch.zeros(len(x), 1)
    for number in range(x.shape[1]):
        off = x[:, number : number + 1].float() - mean
        mean = mean + off / (number + 1)
        squares = squares + off * (x[:, number : number + 1] - mean)
    return ((x - mean) * torch.rsqrt(squares / x.shape[1] + 1e-5)).to(x.dtype)


def outside(x, dims):
    off = x.float() - x.float().mean(dims, keepdim=True)
    return (off / (off.square().mean(dims, keepdim=True).sqrt() + 1e-5)).to(x.dtype)


# name: (inputs, forward, right, wrong)
NORMS = {
    "another eps": ("torch.randn(16, 24)", "return F.layer_norm(x, (24,))", welford, lambda m, x: two_passes(x, 1, 1e-6)),
    "an eps outside of the root": ("torch.randn(20, 24, dtype=torch.bfloat16)", "return F.layer_norm(x, (24,))", welford, lambda m, x: outside(x, 1)),
    "of channels": ("torch.rand(6, 9, 4, 5)", "return F.batch_norm(x, None, None, training=True)", lambda m, x: two_passes(x, (0, 2, 3), 1e-5), lambda m, x: two_passes(x, (0, 2, 3), 1e-6)),
    "of groups": ("torch.randn(12, 4, 10)", "return F.group_norm(x, 2)", lambda m, x: F.group_norm(x.double(), 2).float(), lambda m, x: F.group_norm(x, 2, eps=1e-6)),
    "beside a norm": ("torch.randn(12, 30)", "return x / (x.norm(dim=1, keepdim=True) + 1e-8)", lambda m, x: x * (1 / (x.square().sum(1, keepdim=True).sqrt() + 1e-8)), lambda m, x: x / (x.norm(dim=1, keepdim=True) + 1e-6)),
    "in a root in place of a limit": ("torch.randn(12, 30)", "return F.normalize(x, dim=1)", lambda m, x: x / x.square().sum(1, keepdim=True).sqrt().clamp(min=1e-12), lambda m, x: x * (x.square().sum(1, keepdim=True) + 1e-12).rsqrt()),
}  # fmt: skip


@pytest.mark.parametrize("inputs, forward, right, wrong", NORMS.values(), ids=NORMS)
def test_an_eps_counts(inputs, forward, right, wrong):
    reference = Reference(task(forward, inputs))
    assert refused(reference, wrong)
    accepted_by_many(reference, right)


def rows_by(norm):
    return lambda m, x: x @ (m.w / norm(m.w.norm(dim=1, keepdim=True))).T


# name: (constructor, forward, right, wrong)
BESIDE_WEIGHTS = {
    "a limit of a norm": ("self.w = nn.Parameter(torch.randn(10, 24))", "return F.linear(x, F.normalize(self.w, eps=1e-7))", rows_by(lambda n: n.clamp(min=1e-7)), rows_by(lambda n: n.clamp(min=0.02))),
    "an eps added to a norm": ("self.w = nn.Parameter(torch.randn(10, 24))", "return F.linear(x, self.w / (self.w.norm(dim=1, keepdim=True) + 1e-5))", rows_by(lambda n: n + 1e-5), rows_by(lambda n: (n * n + 1e-10).sqrt())),
    "an eps within the root of a variance": ("self.register_buffer('v', torch.ones(24))", "return x / (self.v + 1e-5).sqrt()", lambda m, x: x * (m.v + 1e-5).rsqrt(), lambda m, x: x / (m.v.sqrt() + 1e-5)),
}  # fmt: skip


@pytest.mark.parametrize("init, forward, right, wrong", BESIDE_WEIGHTS.values(), ids=BESIDE_WEIGHTS)
def test_an_eps_beside_a_weight_counts(init, forward, right, wrong):
    reference = Reference(task(forward, "torch.randn(8, 24)", init=init))
    assert refused(reference, wrong)
    accepted_by_many(reference, right)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_eps_counts_whichever_argument_it_stands_beside(number):
    def product(epsilons):
        return lambda m, *given: torch.stack(
            [t / (t.norm(dim=1, keepdim=True) + eps) for t, eps in zip(given, epsilons, strict=True)]
        ).prod(0)

    inputs = ", ".join(["torch.randn(14, 24)"] * 3)
    forward = "n = lambda t: t / (t.norm(dim=1, keepdim=True) + 1e-7); return n(x) * n(y) * n(z)"
    reference = Reference(task(forward, inputs, "x, y, z"))
    epsilons = [1e-7, 1e-7, 1e-7]
    accepted_by_many(reference, product(epsilons))
    epsilons[number] = 1e-4
    assert refused(reference, product(epsilons))


def test_two_faint_rows_never_meet():
    """torch takes one limit for each of two norms; its documentation says one for their product."""
    inputs = "torch.randn(9, 20), torch.randn(9, 20)"
    reference = Reference(task("return F.cosine_similarity(x, y)", inputs, "x, y"))

    def documented(m, x, y):
        return (x * y).sum(1) / (x.norm(dim=1) * y.norm(dim=1)).clamp(min=1e-8)

    assert reference.findings.chosen(("faint",))
    accepted_by_many(reference, documented)


@pytest.mark.parametrize("shape", [(4, 9), (20,), (8, 5, 16)])
def test_what_is_faint_keeps_its_proportions(shape):
    seen = set()
    for seed in range(12):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        stress.distort(x, "faint", torch.Generator().manual_seed(seed))
        sizes = x.flatten(1).square().mean(1).sqrt() if x.dim() > 1 else x.abs()
        seen |= {size for size in stress.FAINT if ((sizes > size / 3) & (sizes < size * 3)).any()}
        assert (sizes > 0.1).any()
    assert len(seen) == 3


# name: (inputs, forward, right, wrong)
DIGITS = {
    "expm1": ("torch.randn(24, 32)", "return torch.expm1(x) * 2", lambda m, x: 2 * torch.where(x.abs() < 1e-3, x + x * x / 2, x.exp() - 1), lambda m, x: (x.exp() - 1) * 2),
    "log1p": ("torch.rand(24, 32)", "return torch.log1p(x)", lambda m, x: torch.where(x < 1e-3, x - x * x / 2, (1 + x).log()), lambda m, x: (1 + x).log()),
}  # fmt: skip


@pytest.mark.parametrize("inputs, forward, right, wrong", DIGITS.values(), ids=DIGITS)
def test_digits_near_zero_are_kept_where_the_task_keeps_them(inputs, forward, right, wrong):
    reference = Reference(task(forward, inputs))
    assert refused(reference, wrong)
    accepted_by_many(reference, right)


def test_a_softplus_of_several_operators_is_another_matter():
    """Its kernels take the logarithm of 1 + exp(x), whose tail is 0."""
    reference = Reference(task("return torch.log1p(torch.exp(x))", "torch.randn(24, 32)"))
    accepted_by_many(reference, lambda m, x: (1 + x.exp()).log())


# ---- few rows, each with one rounding for all of its elements
FEW = (
    "torch.randn(4, 1337)",
    "return (x - x.amin(-1, keepdim=True)) / (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True) + 1e-5)",
)


def test_one_rounding_a_row_is_no_missing_effect():
    """One reciprocal a row is honest: it was refused with one secret in fifteen, as if elements were independent."""

    def one_reciprocal_a_row(m, x):
        low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
        return (x - low) * (1 / (high - low + 1e-5))

    def without_eps(m, x):
        low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
        return (x - low) / (high - low)

    reference = Reference(task(FEW[1], FEW[0]))
    for secret in (b"25", b"31", b"47", b"60"):  # with these it was
        judge(reference, reference.trials(secret, ""), one_reciprocal_a_row, twice=False)
    assert refused(reference, without_eps)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_an_effect_that_is_left_out_shows_in_few_rows(rows):
    torch.manual_seed(rows)
    w = torch.randn(rows, 400, dtype=torch.float64)
    effect = 1e-7 * torch.randn(400, dtype=torch.float64).expand(rows, 400)
    own = w.float()
    slope, deviation = regress((w - 2 * effect).float(), own, w, w - effect)
    assert abs(slope + 2) < 0.5 and abs(slope) > SLOPE + SIGMAS * deviation


@pytest.mark.parametrize("dim", [0, 1])
def test_an_error_that_slices_share_counts_once_a_slice(dim):
    """Twenty draws of errors that have nothing to do with the effect, which differs from slice to slice too."""
    torch.manual_seed(dim)
    for _ in range(20):
        shape = (5, 1) if dim == 0 else (1, 5)
        full = (5, 300) if dim == 0 else (300, 5)
        w = torch.rand(full, dtype=torch.float64) + 1
        error, effect = (w * 1e-6 * torch.randn(shape, dtype=torch.float64) for _ in range(2))
        noise = 1e-9 * torch.randn(full, dtype=torch.float64)
        slope, deviation = regress(w + error + noise, w, w, w - effect)
        assert abs(slope) <= SLOPE + SIGMAS * deviation
