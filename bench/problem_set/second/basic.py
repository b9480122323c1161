"""Products, reductions, scans, norms and losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from problem_set.second.kit import R, case, integers, net, weight

# -- products --
whole, plain = case("products")

plain("matmul_tall_skinny", lambda a, b: a @ b, lambda s: [R(1777 * s, 33), R(33, 333)])
plain(
    "matmul_first_transposed_odd",
    lambda a, b: a.mT @ b,
    lambda s: [R(1000, 125 * s), R(1000, 1777)],
)
plain(
    "matmul_second_transposed_odd",
    lambda a, b: torch.matmul(a, b.t()),
    lambda s: [R(77 * s, 1333), R(1111, 1333)],
)
plain("matmul_deep_narrow", lambda a, b: a @ b, lambda s: [R(60, 5000 * s), R(5000 * s, 52)])
plain("matmul_with_itself", lambda x: x @ x.T, lambda s: [R(120 * s, 1000)])
plain(
    "matmul_symmetric_scaled",
    lambda a: (a @ ((a + a.T) / 2)).relu(),
    lambda s: [R(100 * s, 100 * s)],
)
plain(
    "matmul_upper",
    lambda a, b: torch.triu(torch.matmul(a.triu(), b.triu())),
    lambda s: [R(96 * s, 96 * s), R(96 * s, 96 * s)],
)
plain(
    "matmul_broadcast_batch",
    lambda a, b: torch.matmul(a, b),
    lambda s: [R(7, 1, 33 * s, 250), R(1, 5, 250, 130)],
)
plain(
    "matmul_five_d",
    lambda a, w: torch.einsum("abijl,lk->abijk", a, w),
    lambda s: [R(s, 3, 17, 31, 100), R(100, 77)],
)
plain(
    "forms_of_rows",
    lambda x, a, y: ((x @ a) * y).sum(-1),
    lambda s: [R(300 * s, 777), R(777, 777), R(300 * s, 777)],
)
plain(
    "batched_matrix_vector",
    lambda a, x: torch.bmm(a, x.unsqueeze(2)).squeeze(2) * 0.5,
    lambda s: [R(4 * s, 333, 500), R(4 * s, 500)],
)
plain("vector_by_matrix", lambda x, a: F.silu(x @ a), lambda s: [R(250 * s), R(250 * s, 1000)])
plain(
    "outer_of_batches",
    lambda a, b: torch.einsum("bi,bj->bij", a, b).tanh(),
    lambda s: [R(10 * s, 333), R(10 * s, 77)],
)
plain(
    "tridiagonal_product",
    lambda x, l, d, u: d * x + F.pad(l[1:] * x[:, :-1], (1, 0)) + F.pad(u[:-1] * x[:, 1:], (0, 1)),
    lambda s: [R(333 * s, 1000), R(1000), R(1000), R(1000)],
)
plain(
    "scores_squared_relu",
    lambda q, k: F.relu(torch.einsum("bhid,bhjd->bhij", q, k) * 0.125).square(),
    lambda s: [R(s, 3, 333, 64), R(s, 3, 333, 64)],
)


def exponential(a):
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    square = a @ a
    return eye + a + square / 2 + square @ a / 6 + square @ square / 24


plain("matrix_exponential_series", exponential, lambda s: [0.2 * R(2000 * s, 9, 9)])


def covariance(x):
    x = x - x.mean(0, keepdim=True)
    c = x.T @ x / (x.shape[0] - 1)
    d = c.diagonal().rsqrt()
    return c * d[:, None] * d


plain("correlation_matrix", covariance, lambda s: [R(500 * s, 500)])
plain(
    "mahalanobis",
    lambda x, m, l: ((x - m) @ l.tril()).square().sum(1).sqrt(),
    lambda s: [R(1000 * s, 300), R(300), 0.1 * R(300, 300)],
)
plain("kronecker", lambda a, b: torch.kron(a, b).relu(), lambda s: [R(10 * s, 33), R(9, 77)])
plain(
    "khatri_rao_columns",
    lambda a, b: (a[:, None] * b[None]).reshape(-1, a.shape[1]),
    lambda s: [R(20 * s, 100), R(100, 100)],
)
plain(
    "pruned_product",
    lambda x, w, m: x @ (w * m).T,
    lambda s: [R(100 * s, 1000), R(1000, 1000), (torch.rand(1000, 1000) > 0.7).float()],
)
whole(
    "blocks_on_diagonal",
    lambda s: (
        net(
            lambda self, x: torch.einsum("bgi,gio->bgo", x, self.weight).flatten(1) + self.bias,
            weight=weight(6, 170, 170, std=0.05),
            bias=weight(1020),
        ),
        [R(200 * s, 6, 170)],
    ),
)
whole(
    "one_row_mlp",
    lambda s: (
        nn.Sequential(nn.Linear(100 * s, 200 * s), nn.GELU(), nn.Linear(200 * s, 100 * s)),
        [R(1, 100 * s)],
    ),
    low=True,
)
whole(
    "product_transposed_out",
    lambda s: (
        net(
            lambda self, x: (self.first(x).transpose(1, 2) + self.bias).contiguous(),
            first=nn.Linear(300, 200),
            bias=weight(333),
        ),
        [R(4 * s, 333, 300)],
    ),
)

# -- reductions --
whole, plain = case("reductions")

plain("sum_of_first", lambda x: x.sum(0, keepdim=True), lambda s: [R(1000 * s, 333)])
plain("mean_of_first_and_third", lambda x: x.mean((0, 2)), lambda s: [R(s, 77, 63, 65)])
plain("maximum_of_middle_two", lambda x: x.amax((1, 2)) - 1, lambda s: [R(2 * s, 31, 33, 100)])
plain("argmin_of_first", lambda x: x.argmin(0), lambda s: [R(100 * s, 3333)], trains=False)
plain(
    "argmax_of_last_odd",
    lambda x: x.argmax(-1, keepdim=True),
    lambda s: [R(50 * s, 77, 77)],
    trains=False,
)
plain("minimum_with_index", lambda x: torch.min(x, 2), lambda s: [R(20 * s, 100, 100)])
plain("deviation_of_first", lambda x: x.std(0, unbiased=False), lambda s: [R(40 * s, 7777)])
plain("product_of_last", lambda x: torch.prod(1 + 0.01 * x, -1), lambda s: [R(300 * s, 1000)])
plain("logsumexp_of_two", lambda x: torch.logsumexp(x, (1, 3)), lambda s: [R(s, 33, 65, 77)])
plain(
    "l1_norm_of_middle",
    lambda x: x / x.abs().mean(1, keepdim=True).clamp(min=1e-6),
    lambda s: [R(4 * s, 333, 100)],
)
plain("l2_norm_of_first", lambda x: F.normalize(x, dim=0), lambda s: [R(125 * s, 1777)])
plain(
    "largest_norm",
    lambda x: x / torch.linalg.vector_norm(x, float("inf"), dim=(1, 2), keepdim=True),
    lambda s: [R(5 * s, 77, 333)],
)
plain("cubic_norm", lambda x: x.norm(p=3, dim=1), lambda s: [R(150 * s, 1111)])
plain(
    "frobenius_of_each",
    lambda x: x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-6),
    lambda s: [R(7 * s, 111, 222)],
)
whole(
    "rms_norm_odd",
    lambda s: (
        net(
            lambda self, x: (
                x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)
            ),
            weight=weight(1000),
        ),
        [R(333 * s, 1000)],
    ),
    low=True,
)


def first_norm(self, x):
    u = x.mean(1, keepdim=True)
    v = (x - u).pow(2).mean(1, keepdim=True)
    return self.weight[:, None, None] * ((x - u) / torch.sqrt(v + 1e-6)) + self.bias[:, None, None]


whole(
    "layer_norm_channels_first",
    lambda s: (net(first_norm, weight=weight(77), bias=weight(77)), [R(s, 77, 57, 57)]),
)
whole("group_norm_seven", lambda s: (nn.GroupNorm(7, 77), [R(s, 77, 60, 61)]))
whole(
    "instance_norm_of_sound", lambda s: (nn.InstanceNorm1d(33, affine=True), [R(2 * s, 33, 3333)])
)
whole("instance_norm_of_volumes", lambda s: (nn.InstanceNorm3d(9), [R(s, 9, 17, 33, 41)]))
whole("batch_norm_of_volumes", lambda s: (nn.BatchNorm3d(12), [R(s, 12, 16, 31, 33)]))
whole("layer_norm_of_two", lambda s: (nn.LayerNorm((77, 33)), [R(100 * s, 77, 33)]))
plain("softmax_of_middle", lambda x: x.softmax(1), lambda s: [R(4 * s, 333, 177)])
plain(
    "log_softmax_of_space",
    lambda x: F.log_softmax(x.flatten(2), -1).view_as(x),
    lambda s: [R(2 * s, 17, 90, 91)],
)
plain("running_sum_of_first", lambda x: torch.cumsum(x, 0) * 0.1, lambda s: [R(100 * s, 2000)])
plain(
    "exclusive_sum_of_middle",
    lambda x: F.pad(x.cumsum(1)[:, :-1], (0, 0, 1, 0)),
    lambda s: [R(2 * s, 1000, 100)],
)
plain(
    "masked_reverse_sum",
    lambda x, m: torch.flip(torch.cumsum(torch.flip(torch.where(m, x, 0.0), [1]), 1), [1]),
    lambda s: [R(100 * s, 2222), torch.rand(100 * s, 2222) > 0.5],
)
plain(
    "exclusive_product",
    lambda x: torch.cat([torch.ones_like(x[:, :1]), (1 + 0.01 * x).cumprod(1)[:, :-1]], 1),
    lambda s: [R(200 * s, 1333)],
)
plain("running_logsumexp_of_first", lambda x: x.logcumsumexp(0), lambda s: [R(50 * s, 3000)])
plain(
    "largest_fall",
    lambda x: (x.cumsum(1).cummax(1).values - x.cumsum(1)).amax(1),
    lambda s: [R(100 * s, 2000)],
)


def running_variance(x):
    n = torch.arange(1, x.shape[1] + 1, dtype=x.dtype, device=x.device)
    mean = x.cumsum(1) / n
    return ((x * x).cumsum(1) / n - mean**2).clamp(min=0).add(1e-6).sqrt()


plain("running_deviation", running_variance, lambda s: [R(100 * s, 2000)])
plain(
    "masked_mean_and_maximum",
    lambda x, m: (
        (x * m[..., None]).sum(1) / m.sum(1, keepdim=True).clamp(min=1),
        x.masked_fill(m[..., None] == 0, -1e4).amax(1),
    ),
    lambda s: [R(4 * s, 333, 150), (torch.rand(4 * s, 333) > 0.3).float()],
)
plain(
    "range_to_one_of_channels",
    lambda x: (
        (x - x.amin((2, 3), keepdim=True))
        / (x.amax((2, 3), keepdim=True) - x.amin((2, 3), keepdim=True) + 1e-6)
    ),
    lambda s: [R(2 * s, 31, 77, 79)],
)


def moments(x):
    d = x - x.mean(-1, keepdim=True)
    v = d.square().mean(-1)
    return d.pow(3).mean(-1) / v.pow(1.5), d.pow(4).mean(-1) / v.square() - 3


plain("skewness_and_kurtosis", moments, lambda s: [R(150 * s, 1999)])


def sinkhorn(x):
    for _ in range(5):
        x = x - x.logsumexp(2, keepdim=True)
        x = x - x.logsumexp(1, keepdim=True)
    return x.exp()


plain("sinkhorn", sinkhorn, lambda s: [R(10 * s, 111, 111)])
plain(
    "weighted_moments",
    lambda x, w: (
        (w.softmax(1) * x).sum(1),
        (w.softmax(1) * (x - (w.softmax(1) * x).sum(1, keepdim=True)).square()).sum(1),
    ),
    lambda s: [R(4 * s, 300, 111), R(4 * s, 300, 111)],
)
plain(
    "three_largest_of_middle", lambda x: x.topk(3, 1).values.mean(1), lambda s: [R(30 * s, 100, 77)]
)
plain(
    "entropy_of_channels",
    lambda x: -(x.softmax(1) * x.log_softmax(1)).sum(1).mean((1, 2)),
    lambda s: [R(2 * s, 21, 99, 101)],
)

# -- losses --
whole, plain = case("losses")


def hardest_triplet(x, y):
    d = torch.cdist(x, x)
    same = y[:, None] == y
    far = torch.where(same, d, 0.0).amax(1)
    near = torch.where(same, float("inf"), d).amin(1)
    return F.relu(far - near + 0.3).mean()


plain("triplet_of_hardest", hardest_triplet, lambda s: [R(100 * s, 100), integers(20, 100 * s)])
plain(
    "multi_margin",
    lambda x, y: F.relu(1 - x.gather(1, y[:, None]) + x).square().mean(),
    lambda s: [R(500 * s, 333), integers(333, 500 * s)],
)
plain(
    "squared_hinge",
    lambda x, y: torch.clamp(1 - x * y, min=0).square().mean(1).sum(),
    lambda s: [R(300 * s, 777), R(300 * s, 777).sign()],
)


def jensen_shannon(a, b):
    p, q = a.softmax(-1), b.softmax(-1)
    m = (0.5 * (p + q)).clamp(min=1e-9).log()
    return 0.5 * (F.kl_div(m, p, reduction="batchmean") + F.kl_div(m, q, reduction="batchmean"))


plain("jensen_shannon", jensen_shannon, lambda s: [R(150 * s, 1000), R(150 * s, 1000)])
plain(
    "weighted_huber",
    lambda a, b, w: (w[:, None] * F.huber_loss(a, b, delta=0.7, reduction="none")).sum() / w.sum(),
    lambda s: [R(200 * s, 999), R(200 * s, 999), torch.rand(200 * s)],
)
plain(
    "cosine_embedding",
    lambda a, b, y: F.cosine_embedding_loss(a, b, y, margin=0.2),
    lambda s: [R(300 * s, 700), R(300 * s, 700), R(300 * s).sign()],
)


def focal_of_classes(x, y):
    logp = F.log_softmax(x, 1).gather(1, y.unsqueeze(1)).squeeze(1)
    return -((1 - logp.exp()) ** 2 * logp).mean()


plain(
    "focal_of_pixels",
    focal_of_classes,
    lambda s: [R(2 * s, 19, 77, 99), integers(19, 2 * s, 77, 99)],
)


def tversky(x, y):
    p, y = x.sigmoid().flatten(1), y.flatten(1)
    hit = (p * y).sum(1)
    return (
        1 - (hit + 1) / (hit + 0.3 * ((1 - y) * p).sum(1) + 0.7 * (y * (1 - p)).sum(1) + 1)
    ).mean()


plain("tversky", tversky, lambda s: [R(2 * s, 3, 200, 201), (R(2 * s, 3, 200, 201) > 0).float()])
plain(
    "siamese_contrastive",
    lambda a, b, y: (
        y * F.pairwise_distance(a, b).square()
        + (1 - y) * F.relu(1.5 - F.pairwise_distance(a, b)).square()
    ).mean(),
    lambda s: [R(500 * s, 300), R(500 * s, 300), integers(2, 500 * s).float()],
)


def supervised_contrastive(x, y):
    z = F.normalize(x, dim=1)
    scores = z @ z.T / 0.1
    own = torch.eye(len(x), dtype=torch.bool, device=x.device)
    scores = scores - scores.amax(1, keepdim=True).detach()
    logp = scores - scores.masked_fill(own, float("-inf")).logsumexp(1, keepdim=True)
    same = (y[:, None] == y) & ~own
    return -(logp * same).sum(1).div(same.sum(1).clamp(min=1)).mean()


plain(
    "supervised_contrastive",
    supervised_contrastive,
    lambda s: [R(100 * s, 130), integers(10, 100 * s)],
)
plain(
    "smoothed_cross_entropy",
    lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    lambda s: [R(200 * s, 1777), integers(1777, 200 * s)],
)
plain(
    "distillation",
    lambda a, b, y: (
        0.7 * 16 * F.kl_div(F.log_softmax(a / 4, 1), F.softmax(b / 4, 1), reduction="batchmean")
        + 0.3 * F.cross_entropy(a, y)
    ),
    lambda s: [R(200 * s, 1000), R(200 * s, 1000), integers(1000, 200 * s)],
)
plain(
    "cross_entropy_and_squared_normaliser",
    lambda x, y: F.cross_entropy(x, y) + 1e-4 * x.logsumexp(-1).square().mean(),
    lambda s: [R(32 * s, 10007), integers(10007, 32 * s)],
    low=True,
)
plain(
    "quantile_losses",
    lambda x, y, q: (
        torch.maximum(q * (y[..., None] - x), (q - 1) * (y[..., None] - x)).sum(-1).mean()
    ),
    lambda s: [R(6000 * s, 33), R(6000 * s), torch.linspace(0.1, 0.9, 33)],
)
plain(
    "log_cosh",
    lambda a, b: (a - b + F.softplus(-2 * (a - b)) - 0.6931471805599453).mean(),
    lambda s: [R(300 * s, 777), R(300 * s, 777)],
)
plain(
    "gaussian_likelihood",
    lambda m, v, y: F.gaussian_nll_loss(m, y, F.softplus(v)),
    lambda s: [R(150 * s, 1000), R(150 * s, 1000), R(150 * s, 1000)],
)


def ssim(a, b):
    mean = lambda t: F.avg_pool2d(t, 7, 1)  # noqa: E731
    ma, mb = mean(a), mean(b)
    va, vb, both = mean(a * a) - ma**2, mean(b * b) - mb**2, mean(a * b) - ma * mb
    top = (2 * ma * mb + 1e-4) * (2 * both + 9e-4)
    return 1 - (top / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4))).mean()


plain(
    "structural_similarity",
    ssim,
    lambda s: [torch.rand(2 * s, 3, 150, 151), torch.rand(2 * s, 3, 150, 151)],
)
plain(
    "total_variation_charbonnier",
    lambda x, y: (
        torch.sqrt((x - y) ** 2 + 1e-6).mean()
        + 0.1 * (x.diff(dim=2).abs().mean() + x.diff(dim=3).abs().mean())
    ),
    lambda s: [R(2 * s, 3, 222, 222), R(2 * s, 3, 222, 222)],
)
plain(
    "earth_mover_of_rows",
    lambda a, b: (a.softmax(1).cumsum(1) - b.softmax(1).cumsum(1)).abs().sum(1).mean(),
    lambda s: [R(200 * s, 800), R(200 * s, 800)],
)
plain(
    "list_net",
    lambda x, y, m: (
        -(y.masked_fill(~m, -1e9).softmax(1) * x.masked_fill(~m, -1e9).log_softmax(1)).sum(1).mean()
    ),
    lambda s: [R(400 * s, 400), R(400 * s, 400), torch.rand(400 * s, 400) > 0.2],
)
plain(
    "rank_net_pairs",
    lambda x, y: (
        (F.softplus(-(x[:, :, None] - x[:, None])) * (y[:, :, None] > y[:, None]))
        .sum((1, 2))
        .mean()
    ),
    lambda s: [R(20 * s, 111), R(20 * s, 111)],
)


def circle(x, y):
    z = F.normalize(x)
    sim, same = z @ z.T, y[:, None] == y
    p = -F.relu(1.25 - sim.detach()) * (sim - 0.75) * 32
    n = F.relu(sim.detach() + 0.25) * (sim - 0.25) * 32
    return F.softplus(
        p.masked_fill(~same, -1e4).logsumexp(1) + n.masked_fill(same, -1e4).logsumexp(1)
    ).mean()


plain("circle_loss", circle, lambda s: [R(90 * s, 100), integers(15, 90 * s)])
plain(
    "style_of_gram",
    lambda a, b: (
        (
            torch.bmm(a.flatten(2), a.flatten(2).mT) / a[0].numel()
            - torch.bmm(b.flatten(2), b.flatten(2).mT) / b[0].numel()
        )
        .square()
        .sum((1, 2))
        .mean()
    ),
    lambda s: [R(s, 100, 55, 57), R(s, 100, 55, 57)],
)
whole(
    "momentum_queue",
    lambda s: (
        net(
            lambda self, q, k: F.cross_entropy(
                torch.cat(
                    [
                        (F.normalize(q) * F.normalize(k)).sum(1, keepdim=True),
                        F.normalize(q) @ F.normalize(self.queue, dim=0),
                    ],
                    1,
                )
                / 0.07,
                torch.zeros(len(q), dtype=torch.long, device=q.device),
            ),
            queue=weight(120, 5000),
        ),
        [R(40 * s, 120), R(40 * s, 120)],
    ),
)
whole(
    "centres_loss",
    lambda s: (
        net(
            lambda self, x, y: ((x - self.centres[y]).square().sum(1) / (1 + self.count[y])).mean(),
            centres=weight(100, 333),
            count=nn.Parameter(torch.rand(100)),
        ),
        [R(500 * s, 333), integers(100, 500 * s)],
    ),
)
