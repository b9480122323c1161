import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm


def scatter_softmax(score, index, n):
    ix = index.unsqueeze(-1).expand_as(score)
    top = score.new_full((n, score.shape[1]), float("-inf"))
    top = top.scatter_reduce(0, ix, score.detach(), "amax", include_self=True)
    e = (score - top[index]).exp()
    den = score.new_zeros(n, score.shape[1]).index_add_(0, index, e)
    return e / den[index].clamp_min(1e-12)


class PairNorm(nn.Module):
    """Normalises per graph; keeps a running scale per call site and uses it in eval."""

    def __init__(self, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x, batch, n_graphs):
        cnt = torch.bincount(batch, minlength=n_graphs).clamp_min(1).to(x.dtype)
        mean = x.new_zeros(n_graphs, x.shape[1]).index_add_(0, batch, x) / cnt[:, None]
        x = x - mean[batch]
        s = x.square().sum(1).mean().sqrt()
        if self.training:
            self.scale.lerp_(s.detach(), self.momentum)
        else:
            s = self.scale
        return x / s.clamp_min(1e-6) * x.shape[1] ** 0.5


class GATv2Layer(nn.Module):
    def __init__(self, dim, heads, edge_dim):
        super().__init__()
        self.heads = heads
        self.src = weight_norm(nn.Linear(dim, dim))
        self.dst = weight_norm(nn.Linear(dim, dim))
        self.edge = nn.Linear(edge_dim, dim, bias=False)
        self.att = nn.Parameter(torch.randn(heads, dim // heads) * 0.2)
        self.norm = PairNorm()

    def forward(self, x, ei, ea, batch, n_graphs, return_attention=False):
        n, d = x.shape
        s, t = ei
        hs = self.src(x).view(n, self.heads, -1)
        ht = self.dst(x).view(n, self.heads, -1)
        msg = hs.index_select(0, s)
        z = msg + ht.index_select(0, t) + self.edge(ea).view(-1, self.heads, d // self.heads)
        alpha = scatter_softmax((F.leaky_relu(z, 0.2) * self.att).sum(-1), t, n)
        agg = torch.zeros_like(hs)
        agg.index_add_(0, t, msg * alpha.unsqueeze(-1))
        out = self.norm(agg.flatten(1), batch, n_graphs)
        return (out, alpha) if return_attention else out


class Model(nn.Module):
    """GATv2 with scatter softmax, weight_norm, a virtual node and jumping-knowledge max pooling."""

    def __init__(self, dim, heads, edge_dim, layers, n_graphs, classes):
        super().__init__()
        self.n_graphs = n_graphs
        self.layers = nn.ModuleList(GATv2Layer(dim, heads, edge_dim) for _ in range(layers))
        self.virtual = nn.Parameter(torch.zeros(1, dim))
        self.vmlp = nn.Sequential(nn.Linear(dim, dim), nn.ReLU())
        self.readout = nn.Linear(2 * dim, classes)

    def forward(self, x, edge_index, edge_attr, batch):
        n = x.shape[0]
        loops = torch.arange(n, device=x.device)
        ei = torch.cat((edge_index, torch.stack((loops, loops))), 1)
        ea = torch.cat((edge_attr, edge_attr.new_zeros(n, edge_attr.shape[1])), 0)
        v = self.virtual.expand(self.n_graphs, -1)
        hist, alpha = [], None
        for i, layer in enumerate(self.layers):
            last = i == len(self.layers) - 1
            x = x + v[batch]
            res = layer(x, ei, ea, batch, self.n_graphs, return_attention=last)
            if isinstance(res, tuple):
                res, alpha = res
            x = x + F.elu(res)
            hist.append(x)
            if not last:
                pooled = torch.zeros_like(v).index_add(0, batch, x)
                v = v + self.vmlp(pooled / 10.0)
        jk = torch.stack(hist, 0).amax(0)
        mean = jk.new_zeros(self.n_graphs, jk.shape[1]).index_reduce(
            0, batch, jk, "mean", include_self=False)
        peak = torch.full_like(mean, -1e9).scatter_reduce(
            0, batch[:, None].expand_as(jk), jk, reduce="amax", include_self=False)
        in_deg = torch.bincount(ei[1], minlength=n)
        return self.readout(torch.cat((mean, peak), 1)), jk, alpha, in_deg


def get_inputs():
    n, e = 400, 2400
    return [torch.randn(n, 48), torch.randint(0, n, (2, e)), torch.randn(e, 8),
            torch.arange(n) * 8 // n]


def get_init_inputs():
    return [48, 4, 8, 3, 8, 6]
