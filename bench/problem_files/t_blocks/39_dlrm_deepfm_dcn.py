import torch
import torch.nn as nn


class Model(nn.Module):
    """CTR model: offset embedding table, FM term, DLRM pairwise dots, DCNv2 low-rank cross, CIN."""

    def __init__(self, fields, dense, dim, cross_layers, rank, cin):
        super().__init__()
        self.register_buffer("offsets", torch.tensor([0] + list(fields[:-1])).cumsum(0))
        total = sum(fields)
        nf = len(fields) + 1
        self.emb = nn.Embedding(total, dim)
        self.lin = nn.Embedding(total, 1)
        self.bottom = nn.Sequential(nn.Linear(dense, 40), nn.ReLU(), nn.Linear(40, dim), nn.ReLU())
        self.register_buffer("tri", torch.tril_indices(nf, nf, -1))
        w = nf * dim
        self.U = nn.ParameterList([nn.Parameter(torch.randn(w, rank) * w ** -0.5) for _ in range(cross_layers)])
        self.V = nn.ParameterList([nn.Parameter(torch.randn(rank, w) * rank ** -0.5) for _ in range(cross_layers)])
        self.cb = nn.Parameter(torch.zeros(cross_layers, w))
        sizes = [nf] + list(cin)
        self.cin = nn.ModuleList([nn.Conv1d(sizes[0] * sizes[i], sizes[i + 1], 1) for i in range(len(cin))])
        self.top = nn.Sequential(nn.Linear(w + nf * (nf - 1) // 2 + sum(cin), 70), nn.ReLU(), nn.Linear(70, 1))

    def forward(self, dense, sparse):
        ids = sparse + self.offsets
        e = torch.cat([self.bottom(dense).unsqueeze(1), self.emb(ids)], dim=1)
        first = self.lin(ids).sum(dim=(1, 2))
        fm = 0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(1)
        dots = torch.bmm(e, e.transpose(1, 2))[:, self.tri[0], self.tri[1]]
        x0 = e.flatten(1)
        x = x0
        for i, (u, v) in enumerate(zip(self.U, self.V)):
            x = x0 * (x @ u @ v + self.cb[i]) + x
        h, pools = e, []
        for conv in self.cin:
            z = torch.einsum("bhd,bmd->bhmd", h, e).flatten(1, 2)
            h = torch.relu(conv(z))
            pools.append(h.sum(-1))
        deep = self.top(torch.cat([x, dots] + pools, dim=1)).squeeze(1)
        return torch.sigmoid(first + 0.01 * fm + deep)


def get_inputs():
    f = [101, 37, 260, 12, 55, 7, 90]
    return [torch.rand(130, 9), torch.stack([torch.randint(0, n, (130,)) for n in f], 1)]


def get_init_inputs():
    return [[101, 37, 260, 12, 55, 7, 90], 9, 15, 3, 21, [14, 10]]
