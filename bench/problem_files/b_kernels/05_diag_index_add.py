import torch
import torch.nn as nn


class Model(nn.Module):
    """Graph-Laplacian-like matrix: edges added in place with repeats, diagonal rewritten, two propagation steps."""

    def __init__(self, nodes, feat):
        super().__init__()
        self.nodes = nodes
        self.feat = nn.Parameter(torch.randn(nodes, feat) * 0.2)
        self.temp = nn.Parameter(torch.tensor(0.7))

    def forward(self, src, dst, weight):
        n = self.nodes
        w = torch.tanh(weight * self.temp) + 1.1
        adj = torch.zeros(n, n, device=weight.device, dtype=weight.dtype)
        adj.view(-1).index_add_(0, src * n + dst, w)
        adj.view(-1).index_add_(0, dst * n + src, w, alpha=0.5)
        raw_diag = adj.diagonal().clone()
        adj = adj.clone()
        adj.fill_diagonal_(0.0)
        deg = adj.sum(1)
        lap = -adj
        lap.diagonal().copy_(deg + 1.0)
        lap.diagonal(offset=3).mul_(0.5)
        lap[n // 2 :, : n // 3] += 0.01 * adj[: n - n // 2, n - n // 3 :]
        r = torch.rsqrt(deg + 1.0)
        norm = lap * r[:, None] * r[None, :]
        h = norm @ self.feat
        h2 = self.feat.clone()
        h2.index_add_(0, dst, h[src] * w[:, None], alpha=0.1)
        h2[::5] = h[::5].neg()
        tri = norm.tril(-2).sum(0) + norm.triu(1).sum(1)
        return h2 * h.cos(), tri + raw_diag, norm.diagonal(offset=-1) + norm.diagonal(offset=1)


def get_inputs():
    n, e = 307, 2049
    return [torch.randint(0, n, (e,)), torch.randint(0, n, (e,)), torch.randn(e)]


def get_init_inputs():
    return [307, 31]
