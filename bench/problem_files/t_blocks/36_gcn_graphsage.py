import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """GCN layers by index_add with symmetric normalisation, then a mean-aggregator GraphSAGE layer
    with l2-normalised output, jumping knowledge and graph mean readout."""

    def __init__(self, din, dh, dout, layers, graphs):
        super().__init__()
        self.graphs = graphs
        self.lins = nn.ModuleList([nn.Linear(din if i == 0 else dh, dh, bias=False) for i in range(layers)])
        self.bias = nn.Parameter(torch.zeros(layers, dh))
        self.sage_self = nn.Linear(dh, dh)
        self.sage_nb = nn.Linear(dh, dh, bias=False)
        self.out = nn.Linear(dh * (layers + 1), dout)

    def forward(self, x, edge_index, batch):
        n = x.size(0)
        loop = torch.arange(n, device=x.device)
        src = torch.cat([edge_index[0], loop])
        dst = torch.cat([edge_index[1], loop])
        deg = torch.zeros(n, device=x.device, dtype=x.dtype)
        deg = deg.index_add(0, dst, torch.ones_like(dst, dtype=x.dtype))
        dinv = deg.pow(-0.5)
        norm = (dinv[src] * dinv[dst]).unsqueeze(-1)
        hs = []
        for i, lin in enumerate(self.lins):
            h = lin(x)
            agg = torch.zeros_like(h)
            agg.index_add_(0, dst, h.index_select(0, src) * norm)
            h = torch.relu(agg + self.bias[i])
            x = h if i == 0 else h + x
            hs.append(x)
        nb = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        nb = nb / (deg - 1).clamp(min=1).unsqueeze(-1)
        hs.append(F.normalize(F.relu(self.sage_self(x) + self.sage_nb(nb)), p=2.0, dim=-1))
        z = torch.cat(hs, -1)
        pooled = z.new_zeros(self.graphs, z.size(1)).index_add(0, batch, z)
        cnt = z.new_zeros(self.graphs).index_add(0, batch, z.new_ones(n)).clamp(min=1)
        return self.out(pooled / cnt[:, None])


def get_inputs():
    n, e, g = 630, 3100, 9
    return [
        torch.randn(n, 23),
        torch.randint(0, n, (2, e)),
        torch.sort(torch.randint(0, g, (n,)))[0],
    ]


def get_init_inputs():
    return [23, 50, 4, 3, 9]
