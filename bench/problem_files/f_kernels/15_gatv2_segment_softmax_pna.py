import torch
import torch.nn as nn
import torch.nn.functional as F


def seg(src, index, size, how):
    idx = index.view(-1, *[1] * (src.dim() - 1)).expand_as(src)
    start = src.new_zeros(size, *src.shape[1:])
    return start.scatter_reduce(0, idx, src, how, include_self=False)


class Model(nn.Module):
    def __init__(self, n_types, dim, heads, width, edge_dim, graphs):
        super().__init__()
        self.heads, self.width, self.graphs = heads, width, graphs
        self.embed = nn.Embedding(n_types, dim)
        self.l = nn.Linear(dim, heads * width)
        self.r = nn.Linear(dim, heads * width)
        self.e = nn.Linear(edge_dim, heads * width, bias=False)
        self.att = nn.Parameter(torch.randn(heads, width) * 0.4)
        self.mix = nn.Linear(4 * heads * width, dim)
        self.delta = nn.Parameter(torch.tensor(1.8))
        self.gate = nn.Linear(dim, 1)
        self.head = nn.Linear(dim, 5)

    def forward(self, types, src, dst, edge, graph):
        n = types.shape[0]
        x = self.embed(types)
        h, c = self.heads, self.width
        xl, xr = self.l(x).view(n, h, c), self.r(x).view(n, h, c)
        m = xl[src] + xr[dst] + self.e(edge).view(-1, h, c)
        score = (F.leaky_relu(m, 0.2) * self.att).sum(-1)
        top = seg(score, dst, n, "amax")
        ex = torch.exp(score - top[dst])
        den = torch.zeros_like(top).index_add(0, dst, ex)
        a = ex / (den[dst] + 1e-16)
        msg = xl[src] * a.unsqueeze(-1)
        deg = torch.bincount(dst, minlength=n).to(x.dtype)
        total = x.new_zeros(n, h, c).index_add(0, dst, msg)
        mean = seg(m, dst, n, "mean")
        sq = seg(m * m, dst, n, "mean")
        std = torch.sqrt(F.relu(sq - mean * mean) + 1e-5)
        high = seg(m, dst, n, "amax")
        amp = torch.log1p(deg) / self.delta
        agg = torch.cat((total, mean * amp.view(-1, 1, 1), std, high), -1).flatten(1)
        y = F.elu(self.mix(agg)) + x
        y = y - seg(y, graph, self.graphs, "mean")[graph]
        y = y / torch.sqrt(seg(y * y, graph, self.graphs, "mean")[graph] + 1e-5)
        g = torch.exp(torch.tanh(self.gate(y)))
        pooled = x.new_zeros(self.graphs, y.shape[1]).index_add(0, graph, y * g)
        pooled = pooled / x.new_zeros(self.graphs, 1).index_add(0, graph, g)
        pooled = pooled + seg(y, graph, self.graphs, "amax")
        return self.head(pooled), y, a


def get_inputs():
    n, e = 503, 3001
    graph = torch.sort(torch.randint(0, 17, (n,))).values
    return [torch.randint(0, 29, (n,)), torch.randint(0, n, (e,)), torch.randint(0, n, (e,)), torch.randn(e, 7), graph]


def get_init_inputs():
    return [29, 38, 3, 14, 7, 17]
