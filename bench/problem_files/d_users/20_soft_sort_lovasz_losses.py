import torch
import torch.nn as nn
import torch.nn.functional as F


def neural_sort(s, tau):
    """NeuralSort relaxation: (B, N) -> row-stochastic permutation (B, N, N), descending."""
    n = s.shape[1]
    s = s.unsqueeze(-1)
    A = (s - s.mT).abs().sum(-1, keepdim=True)
    scaling = n + 1 - 2 * torch.arange(1, n + 1, device=s.device, dtype=s.dtype)
    return ((s.mT * scaling.view(1, n, 1) - A.mT) / tau).softmax(-1)


def odd_even_network(x, steepness):
    """Relaxed odd-even transposition sort (ascending); tracks the soft permutation beside it."""
    b, n = x.shape
    P = torch.eye(n, device=x.device, dtype=x.dtype).repeat(b, 1, 1)
    for layer in range(n):
        off = layer % 2
        m = (n - off) // 2 * 2
        lo, hi = x[:, off: off + m: 2], x[:, off + 1: off + m: 2]
        a = torch.atan(steepness * (hi - lo)) / torch.pi + 0.5
        x_new, P_new = x.clone(), torch.empty_like(P).copy_(P)
        x_new[:, off: off + m: 2] = a * lo + (1 - a) * hi
        x_new[:, off + 1: off + m: 2] = (1 - a) * lo + a * hi
        w = a.unsqueeze(-1)
        Pl, Ph = P[:, off: off + m: 2], P[:, off + 1: off + m: 2]
        P_new[:, off: off + m: 2] = w * Pl + (1 - w) * Ph
        P_new[:, off + 1: off + m: 2] = (1 - w) * Pl + w * Ph
        x, P = x_new, P_new
    return x, P


def lovasz_grad(gt_sorted):
    total = gt_sorted.sum()
    inter = total - gt_sorted.cumsum(0)
    union = total + (1 - gt_sorted).cumsum(0)
    jac = 1.0 - inter / union
    jac[1:] = jac[1:] - jac[:-1].clone()
    return jac


def lovasz_hinge(logits, labels, per_image=True):
    if per_image:
        return torch.stack([lovasz_hinge(l, y, per_image=False) for l, y in zip(logits, labels)]).mean()
    logits, labels = logits.reshape(-1), labels.reshape(-1).to(logits.dtype)
    err = 1.0 - logits * (2.0 * labels - 1.0)
    err_sorted, perm = torch.sort(err, dim=0, descending=True, stable=True)
    return torch.dot(F.relu(err_sorted), lovasz_grad(labels[perm]))


def tversky(p, y, alpha=0.3, beta=0.7, eps=1.0, gamma=0.75):
    dims = tuple(range(1, p.dim()))
    tp, fp, fn = (p * y).sum(dims), (p * (1 - y)).sum(dims), ((1 - p) * y).sum(dims)
    ti = (tp + eps) / (tp + alpha * fp + beta * fn + eps)
    return (1 - ti).pow(gamma).mean(), ti


class Model(nn.Module):
    """Segmentation and ranking heads with Lovasz, Tversky, NeuralSort and soft sorting networks."""

    def __init__(self, cin, width, n_rank, tau=0.7):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(cin, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=2, dilation=2)
        self.seg, self.rank = nn.Conv2d(width, 1, 1), nn.Conv2d(width, n_rank, 1)
        self.log_vars = nn.ParameterDict({k: nn.Parameter(torch.zeros(())) for k in ("lov", "tv", "rank", "swap")})
        self.tau = tau
        self.register_buffer("iou_ema", torch.full((1,), 0.5))
        self.register_buffer("relevance", torch.linspace(1, 0, n_rank))

    def forward(self, x, mask, hard=False):
        h = F.gelu(self.c1(x))
        h = h + F.gelu(self.c2(h))
        logit = self.seg(h).squeeze(1)
        y = (mask > 0).float()
        tv, ti = tversky(logit.sigmoid(), y)
        pooled = F.adaptive_max_pool2d(self.rank(h), 1).flatten(1)
        scores = (pooled - pooled.mean(1, keepdim=True)) / (pooled.std(1, keepdim=True) + 1e-3)
        P = neural_sort(scores, self.tau)
        if hard:
            idx = P.argmax(-1)
            P = F.one_hot(idx, P.shape[-1]).to(P) + P - P.detach()
        gain = (P @ (2 ** self.relevance - 1).unsqueeze(-1)).squeeze(-1)
        disc = 1 / torch.log2(torch.arange(2, 2 + gain.shape[1], device=x.device).float())
        ndcg = (gain * disc).sum(1) / ((2 ** self.relevance - 1) * disc).sum()
        srt, Q = odd_even_network(scores, steepness=8.0)
        swap = (srt[:, :-1] - srt[:, 1:]).relu().mean() - (Q * (Q + 1e-9).log()).sum(-1).mean() * -0.1
        terms = {"lov": lovasz_hinge(logit, y), "tv": tv, "rank": 1 - ndcg.mean(), "swap": swap}
        loss = sum((-self.log_vars[k]).exp() * v + self.log_vars[k] for k, v in terms.items())
        with torch.no_grad():
            pred = logit > 0
            inter, union = (pred & y.bool()).sum(), (pred | y.bool()).sum()
            self.iou_ema.mul_(0.9).add_(0.1 * inter / union.clamp_min(1))
        return {"loss": loss, **terms, "perm": P, "sorted": srt, "tversky": ti, "iou": self.iou_ema.clone()}


def get_inputs():
    return [torch.randn(4, 4, 56, 56), torch.randn(4, 56, 56)]


def get_init_inputs():
    return [4, 24, 16]
