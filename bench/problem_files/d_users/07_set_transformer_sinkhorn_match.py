import torch
import torch.nn as nn
import torch.nn.functional as F


class MAB(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.o = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.ln = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])

    def forward(self, x, y, key_mask=None):
        b, n, d = x.shape
        split = lambda z: z.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q = split(self.q(x))
        k, v = map(split, self.kv(y).chunk(2, -1))
        att = q @ k.mT * (d // self.heads) ** -0.5
        if key_mask is not None:
            att = att.masked_fill(~key_mask[:, None, None, :], torch.finfo(att.dtype).min)
        h = x + (att.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d)
        h = self.ln[0](h)
        return self.ln[1](h + F.relu(self.o(h)))


def box_giou(a, b):
    """Pairwise generalised IoU of (cx, cy, w, h) boxes: (B,N,4),(B,M,4) -> (B,N,M)."""
    def corners(z):
        c, s = z[..., :2], z[..., 2:]
        return c - s / 2, c + s / 2
    (a0, a1), (b0, b1) = corners(a), corners(b)
    a0, a1, b0, b1 = a0[:, :, None], a1[:, :, None], b0[:, None], b1[:, None]
    inter = (torch.minimum(a1, b1) - torch.maximum(a0, b0)).clamp(min=0).prod(-1)
    union = (a1 - a0).prod(-1) + (b1 - b0).prod(-1) - inter
    hull = (torch.maximum(a1, b1) - torch.minimum(a0, b0)).prod(-1)
    return inter / union - (hull - union) / hull


def sinkhorn(cost, mask, eps, iters=30, tol=1e-4):
    logK = -cost / eps
    logK = logK.masked_fill(~mask[:, None, :], -1e4)
    f = cost.new_zeros(cost.shape[0], cost.shape[1])
    log_b = torch.where(mask, 0.0, -1e4) - mask.sum(1, keepdim=True).float().log()
    log_a = -torch.log(torch.tensor(float(cost.shape[1]), device=cost.device))
    n_used = 0
    for i in range(iters):
        g = log_b - torch.logsumexp(logK + f[:, :, None], dim=1)
        f_new = log_a - torch.logsumexp(logK + g[:, None, :], dim=2)
        delta = (f_new - f).detach().abs().max().item()
        f = f_new
        n_used += 1
        if i > 4 and delta < tol:
            break
    return (logK + f[:, :, None] + g[:, None, :]).exp()


@torch.no_grad()
def greedy_match(plan):
    p = plan.clone()
    B, N, M = p.shape
    match = torch.full((B, M), -1, dtype=torch.long, device=p.device)
    rows = torch.arange(B, device=p.device)
    for _ in range(M):
        flat = p.view(B, -1).argmax(1)
        r, c = flat.div(M, rounding_mode="floor"), flat % M
        ok = p[rows, r, c] > 0
        match[rows, c] = torch.where(ok, r, match[rows, c])
        p[rows, r, :] = -1
        p[rows, :, c] = -1
    return match


class Model(nn.Module):
    """Set transformer detector head matched to targets by GIoU cost and Sinkhorn (early stop)."""

    def __init__(self, in_dim, dim, heads, inducing, queries):
        super().__init__()
        self.embed = nn.Linear(in_dim, dim)
        self.inducing = nn.Parameter(torch.randn(1, inducing, dim))
        self.queries = nn.Parameter(torch.randn(1, queries, dim))
        self.mabs = nn.ModuleDict({k: MAB(dim, heads) for k in ("down", "up", "pool", "self")})
        self.box = nn.Linear(dim, 4)
        self.log_eps = nn.Parameter(torch.tensor(-1.5))

    def forward(self, pts, tgt, tgt_mask):
        h = self.embed(pts)
        ind = self.mabs["down"](self.inducing.expand(h.shape[0], -1, -1), h)
        h = self.mabs["up"](h, ind)
        q = self.mabs["pool"](self.queries.expand(len(h), -1, -1), h)
        q = self.mabs["self"](q, q)
        boxes = self.box(q).sigmoid()
        tgt_box = tgt.sigmoid()
        giou = box_giou(boxes, tgt_box)
        cost = torch.cdist(boxes, tgt_box, p=1) + (1 - giou)
        plan = sinkhorn(cost, tgt_mask, self.log_eps.exp())
        loss = (plan * cost).masked_fill(~tgt_mask[:, None], 0.0).sum((1, 2)).mean()
        match = greedy_match(plan)
        return {"loss": loss, "boxes": boxes, "giou": giou,
                "n_matched": ((match >= 0) & tgt_mask).sum(1), "targets": tgt}


def get_inputs():
    mask = torch.arange(6)[None] < torch.tensor([6, 3, 4, 1])[:, None]
    return [torch.randn(4, 200, 10), torch.randn(4, 6, 4), mask]


def get_init_inputs():
    return [10, 64, 4, 16, 20]
