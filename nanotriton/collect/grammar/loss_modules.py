"""The losses that the grammar asks for; see whole.py for what a Whole is."""

from nanotriton.collect.grammar.whole import Whole

_M = "torch.randn(rows, cols)"
_SIGN = "torch.randint(0, 2, ({0})).float() * 2 - 1"


def _loss(name: str, text: str, target: str = _M, x: str = _M) -> Whole:
    """An `nn.` text is a layer."""
    inputs = (("x", x), ("target", target))
    if text.startswith("nn."):
        return Whole(name, "loss", inputs, ("self.loss(x, target)",), (f"self.loss = {text}",))
    return Whole(name, "loss", inputs, (text,))


_ROW = "torch.randint(0, cols, (rows,))"
_PROBABILITIES = "torch.softmax(torch.randn(rows, cols), dim=-1)"


LOSSES = [
    _loss("mse_loss", "nn.MSELoss()"),
    _loss("mse_loss", "((x - target) ** 2).mean()"),
    _loss(
        "mse_loss",
        "F.mse_loss(x, target)",
        "torch.randn(batch, length, features)",
        "torch.randn(batch, length, features)",
    ),
    _loss("l1_loss", "nn.L1Loss()"),
    _loss("l1_loss", "torch.mean(torch.abs(x - target))"),
    _loss("smooth_l1_loss", "nn.SmoothL1Loss()"),
    _loss("huber_loss", "nn.HuberLoss()"),
    _loss("huber_loss", "nn.HuberLoss(delta=0.5)"),
    _loss("huber_loss", "F.huber_loss(x, target)"),
    _loss("cross_entropy", "nn.CrossEntropyLoss()", _ROW),
    _loss("nll_loss", "nn.NLLLoss()", _ROW, "torch.log_softmax(torch.randn(rows, cols), dim=-1)"),
    _loss("kl_div", 'F.kl_div(torch.log(x), target, reduction="batchmean")', _PROBABILITIES, _PROBABILITIES),
    _loss(
        "kl_div",
        'nn.KLDivLoss(reduction="batchmean")',
        _PROBABILITIES,
        "torch.log_softmax(torch.randn(rows, cols), dim=-1)",
    ),
    _loss("bce_with_logits", "nn.BCEWithLogitsLoss()", "torch.rand(rows, cols)"),
    _loss(
        "hinge_loss",
        "torch.mean(torch.clamp(1 - x * target, min=0))",
        _SIGN.format("rows,"),
        "torch.randn(rows)",
    ),
    _loss("hinge_loss", "torch.relu(1 - x * target).mean()", _SIGN.format("rows, cols")),
    _loss("cosine_distance", "torch.mean(1 - F.cosine_similarity(x, target, dim=1))"),
    _loss("sum_of_squares", "torch.sum((x - target) ** 2)"),
    _loss("mse_loss", "F.mse_loss(x, target)"),
    _loss("mse_loss", "torch.mean((x - target) ** 2)"),
    _loss("l1_loss", "F.l1_loss(x, target)"),
    _loss("smooth_l1_loss", "F.smooth_l1_loss(x, target)"),
    _loss("smooth_l1_loss", "F.smooth_l1_loss(x, target, beta=0.5)"),
    _loss("huber_loss", "F.huber_loss(x, target, delta=0.5)"),
    _loss("log_cosh_loss", "torch.log(torch.cosh(torch.tanh(x) - target)).mean()"),
    _loss("bce_with_logits", "F.binary_cross_entropy_with_logits(x, target)", "torch.rand(rows, cols)"),
    _loss("bce_loss", "F.binary_cross_entropy(torch.sigmoid(x), target)", "torch.rand(rows, cols)"),
    _loss(
        "kl_div",
        'F.kl_div(F.log_softmax(x, dim=-1), target, reduction="batchmean")',
        "torch.softmax(torch.randn(rows, cols), dim=-1)",
    ),
    _loss("cross_entropy", "F.cross_entropy(x, target)", "torch.randint(0, cols, (rows,))"),
    _loss(
        "cross_entropy_none",
        'F.cross_entropy(x, target, reduction="none")',
        "torch.randint(0, cols, (rows,))",
    ),
    _loss("nll_loss", "F.nll_loss(F.log_softmax(x, dim=1), target)", "torch.randint(0, cols, (rows,))"),
    _loss("poisson_nll", "F.poisson_nll_loss(x, target)", "torch.rand(rows, cols) * 4"),
    _loss("hinge_loss", "torch.clamp(1 - x * target, min=0).mean()", _SIGN.format("rows, cols")),
    _loss("squared_hinge", "(torch.clamp(1 - x * target, min=0) ** 2).mean()", _SIGN.format("rows, cols")),
    _loss("soft_margin", "F.soft_margin_loss(x, target)", _SIGN.format("rows, cols")),
    _loss("hinge_embedding", "F.hinge_embedding_loss(x, target)", _SIGN.format("rows, cols")),
    _loss("cosine_similarity", "F.cosine_similarity(x, target, dim=-1)"),
    _loss("cosine_distance", "(1 - F.cosine_similarity(x, target, dim=1)).mean()"),
    _loss("pairwise_distance", "F.pairwise_distance(x, target)"),
    _loss(
        "dice_loss",
        "1 - (2 * (torch.sigmoid(x) * target).sum(dim=-1) + 1) / (torch.sigmoid(x).sum(dim=-1) + target.sum(dim=-1) + 1)",  # noqa: E501
        "torch.rand(rows, cols)",
    ),
    _loss(
        "focal_loss",
        "(-target * (1 - torch.sigmoid(x)) ** 2 * F.logsigmoid(x) - (1 - target) * torch.sigmoid(x) ** 2 * F.logsigmoid(-x)).mean()",  # noqa: E501
        "torch.rand(rows, cols)",
    ),
    _loss("charbonnier", "torch.sqrt((x - target) ** 2 + 1e-3).mean()"),
    _loss("mean_absolute_percentage", "(torch.abs(x - target) / (torch.abs(target) + 1)).mean()"),
    Whole(
        "gaussian_nll",
        "loss",
        (("x", _M), ("target", _M), ("var", "torch.rand(rows, cols) + 0.1")),
        ("F.gaussian_nll_loss(x, target, var)",),
    ),
    Whole(
        "margin_ranking",
        "loss",
        (("a", "torch.randn(rows)"), ("b", "torch.randn(rows)"), ("target", _SIGN.format("rows,"))),
        ("F.margin_ranking_loss(a, b, target, margin=0.5)",),
    ),
    *(
        Whole("triplet_margin", "loss", (("a", _M), ("p", _M), ("n", _M)), (text,), init)
        for text, init in (
            ("F.triplet_margin_loss(a, p, n)", ()),
            ("F.triplet_margin_loss(a, p, n, margin=0.5)", ()),
            ("self.loss(a, p, n)", ("self.loss = nn.TripletMarginLoss(margin=1.0)",)),
        )
    ),
    Whole(
        "cosine_embedding",
        "loss",
        (("a", _M), ("b", _M), ("target", _SIGN.format("rows,"))),
        ("F.cosine_embedding_loss(a, b, target)",),
    ),
    Whole("frobenius_normalise", "loss", (("x", _M),), ("x / torch.norm(x)",)),
    Whole("frobenius_normalise", "loss", (("x", _M),), ('x / torch.norm(x, p="fro")',)),
    Whole("mean_of_everything", "loss", (("x", _M),), ("torch.mean(torch.tanh(x))",)),
    Whole("sum_of_squares", "loss", (("x", _M),), ("(x * x).sum()",)),
]
