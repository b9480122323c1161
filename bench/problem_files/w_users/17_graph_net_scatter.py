import torch
import torch.nn as nn
import torch.nn.functional as F


def scatter_softmax(src, index, n):
    idx = index.unsqueeze(-1).expand_as(src)
    mx = torch.full((n, src.size(1)), float("-inf"), dtype=src.dtype, device=src.device)
    mx = mx.scatter_reduce(0, idx, src.detach(), reduce="amax", include_self=True)
    e = torch.exp(src - mx.gather(0, idx))
    den = torch.zeros(n, src.size(1), dtype=src.dtype, device=src.device).scatter_add(0, idx, e)
    return e / (den.gather(0, idx) + 1e-16)


class GATv2(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.l = nn.Linear(d, d)
        self.r = nn.Linear(d, d)
        self.att = nn.Parameter(torch.randn(heads, d // heads) * 0.2)
        self.h = heads

    def forward(self, x, src, dst):
        n = x.shape[0]
        xl = self.l(x).view(n, self.h, -1)
        xr = self.r(x).view(n, self.h, -1)
        e = F.leaky_relu(xl[src] + xr[dst], 0.2)
        a = scatter_softmax((e * self.att).sum(-1), dst, n)
        out = torch.zeros_like(xl)
        out.index_add_(0, dst, xl.index_select(0, src) * a.unsqueeze(-1))
        return out.flatten(1), a


class Model(nn.Module):
    """Graph net: GCN with degree norms, GATv2, PNA aggregators, readout per graph by segments."""

    def __init__(self, d=32, heads=4, n_graphs=8):
        super().__init__()
        self.n_graphs = n_graphs
        self.inp = nn.Linear(10, d)
        self.edge = nn.Embedding(5, d)
        self.gcn = nn.Linear(d, d, bias=False)
        self.gat = GATv2(d, heads)
        self.pna = nn.Linear(5 * d, d)
        self.bn = nn.BatchNorm1d(d, momentum=0.2)
        self.eps = nn.Parameter(torch.zeros(1))
        self.read = nn.Sequential(nn.Linear(3 * d, d), nn.SiLU(), nn.Linear(d, 1))

    def forward(self, x, edges, etype, sizes):
        n = x.shape[0]
        src, dst = edges
        h = F.relu(self.inp(x))
        # gcn with self loops
        loop = torch.arange(n, device=x.device)
        s2, d2 = torch.cat([src, loop]), torch.cat([dst, loop])
        deg = torch.zeros(n, dtype=x.dtype, device=x.device)
        deg.index_put_((d2,), torch.ones((), dtype=x.dtype, device=x.device), accumulate=True)
        dis = deg.pow(-0.5)
        dis[dis == float("inf")] = 0
        msg = self.gcn(h)[s2] * (dis[s2] * dis[d2])[:, None]
        g = torch.zeros_like(h).scatter_add_(0, d2[:, None].expand(-1, h.size(1)), msg)
        h = h + F.relu_(self.bn(g))
        a, alpha = self.gat(h, src, dst)
        h = (1 + self.eps) * h + a
        # pna
        m = F.silu(h[src] + self.edge(etype))
        di = dst[:, None].expand_as(m)
        base = torch.zeros_like(h)
        mean = base.scatter_reduce(0, di, m, reduce="mean", include_self=False)
        mx = base.scatter_reduce(0, di, m, reduce="amax", include_self=False)
        mn = base.scatter_reduce(0, di, m, reduce="amin", include_self=False)
        sq = base.scatter_reduce(0, di, m * m, reduce="mean", include_self=False)
        std = torch.sqrt(F.relu(sq - mean * mean) + 1e-5)
        scale = torch.log1p(deg)[:, None] / torch.log1p(deg).mean()
        h = h + self.pna(torch.cat([mean, mx, mn, std, mean * scale], 1))
        # segments
        per = torch.segment_reduce(h, "mean", lengths=sizes, axis=0, unsafe=True)
        batch = torch.repeat_interleave(torch.arange(self.n_graphs, device=x.device), sizes, output_size=n)
        top = torch.zeros(self.n_graphs, h.size(1), device=x.device).index_reduce(0, batch, h, "amax", include_self=False)
        summed = h.new_zeros(self.n_graphs, h.size(1)).index_add(0, batch, h, alpha=0.1)
        out = self.read(torch.cat([per, top, summed], 1)).squeeze(-1)
        # link scores and an adjacency power
        A = torch.zeros(n, n, device=x.device)
        A[src, dst] = 1.0
        A = torch.clamp(A + A.t(), max=1)
        tri = torch.einsum("ij,jk,ki->i", A, A, A) / 2
        link = torch.sigmoid((h[src] * h[dst]).sum(-1) / h.size(1))
        return out, link, alpha, tri, h


def get_inputs():
    n, e = 200, 900
    return [torch.randn(n, 10), torch.randint(0, n, (2, e)), torch.randint(0, 5, (e,)),
            torch.full((8,), 25, dtype=torch.long)]


def get_init_inputs():
    return [32, 4, 8]
