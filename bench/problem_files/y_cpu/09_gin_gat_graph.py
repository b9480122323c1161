import torch
import torch.nn as nn
import torch.nn.functional as F


def segment_softmax(src, index, num_nodes):
    idx = index.unsqueeze(-1).expand_as(src)
    mx = torch.full((num_nodes, src.size(1)), float("-inf"), dtype=src.dtype, device=src.device)
    mx = mx.scatter_reduce(0, idx, src.detach(), reduce="amax", include_self=True)
    out = (src - mx[index]).exp()
    denom = torch.zeros(num_nodes, src.size(1), dtype=src.dtype, device=src.device)
    denom = denom.index_add(0, index, out)
    return out / (denom[index] + 1e-16)


class GINConv(nn.Module):
    def __init__(self, dim, num_bond):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(dim, 2 * dim), nn.BatchNorm1d(2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim)
        )
        self.eps = nn.Parameter(torch.zeros(1))
        self.bond_encoder = nn.Embedding(num_bond, dim)

    def forward(self, x, row, col, edge_attr):
        msg = F.relu(x[row] + self.bond_encoder(edge_attr))
        aggr = torch.zeros_like(x).index_add_(0, col, msg)
        return self.mlp((1 + self.eps) * x + aggr)


class GATConv(nn.Module):
    def __init__(self, dim, heads, negative_slope=0.2):
        super().__init__()
        self.heads, self.out = heads, dim // heads
        self.lin = nn.Linear(dim, dim, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, self.out))
        self.att_dst = nn.Parameter(torch.empty(1, heads, self.out))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.negative_slope = negative_slope
        nn.init.xavier_uniform_(self.att_src)
        nn.init.xavier_uniform_(self.att_dst)

    def forward(self, x, row, col):
        N = x.size(0)
        loop = torch.arange(N, device=x.device)
        row, col = torch.cat([row, loop]), torch.cat([col, loop])
        h = self.lin(x).view(N, self.heads, self.out)
        a_src = (h * self.att_src).sum(-1)
        a_dst = (h * self.att_dst).sum(-1)
        alpha = F.leaky_relu(a_src[row] + a_dst[col], self.negative_slope)
        alpha = segment_softmax(alpha, col, N)
        msg = h[row] * alpha.unsqueeze(-1)
        out = torch.zeros_like(h).index_add_(0, col, msg)
        return out.view(N, -1) + self.bias


class Model(nn.Module):
    """Molecule-style graph regressor: alternating GIN and GAT layers with
    index_add, a virtual node, and mean/sum readout per graph."""

    def __init__(self, num_atom, num_bond, dim, layers, heads, num_graphs, tasks):
        super().__init__()
        self.num_graphs = num_graphs
        self.atom_encoder = nn.Embedding(num_atom, dim)
        self.virtualnode = nn.Embedding(1, dim)
        nn.init.normal_(self.virtualnode.weight, std=0.1)
        self.gins = nn.ModuleList([GINConv(dim, num_bond) for _ in range(layers)])
        self.gats = nn.ModuleList([GATConv(dim, heads) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(dim) for _ in range(layers)])
        self.vn_mlps = nn.ModuleList(
            [nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim), nn.ReLU()) for _ in range(layers - 1)]
        )
        self.out = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, tasks))

    def forward(self, atom, edge_index, edge_attr, batch, y):
        row, col = edge_index[0], edge_index[1]
        G = self.num_graphs
        x = self.atom_encoder(atom)
        vn = self.virtualnode(torch.zeros(G, dtype=torch.long, device=x.device))
        for i, (gin, gat, norm) in enumerate(zip(self.gins, self.gats, self.norms)):
            x = x + vn[batch]
            h = F.relu(norm(gin(x, row, col, edge_attr)))
            h = F.elu(gat(h, row, col))
            x = h + x
            if i < len(self.gins) - 1:
                pooled = torch.zeros_like(vn).index_add_(0, batch, x)
                vn = vn + self.vn_mlps[i](pooled + vn)
        sum_pool = torch.zeros(G, x.size(1), device=x.device).index_add_(0, batch, x)
        count = torch.bincount(batch, minlength=G).clamp(min=1).unsqueeze(-1)
        pred = self.out(torch.cat([sum_pool / count, 0.1 * sum_pool], dim=-1))
        is_labeled = ~torch.isnan(y)
        loss = F.smooth_l1_loss(pred[is_labeled], y[is_labeled])
        return loss, pred


def get_inputs():
    g = torch.Generator().manual_seed(8)
    sizes = torch.randint(11, 52, (61,), generator=g)
    starts = torch.cumsum(sizes, 0) - sizes
    batch = torch.repeat_interleave(torch.arange(61), sizes)
    eb = torch.randint(0, 61, (4099,), generator=g)
    u = (torch.rand(4099, generator=g) * sizes[eb]).long() + starts[eb]
    v = (torch.rand(4099, generator=g) * sizes[eb]).long() + starts[eb]
    y = torch.randn(61, 5, generator=g)
    y[torch.rand(61, 5, generator=g) < 0.2] = float("nan")
    attr = torch.randint(0, 6, (4099,), generator=g)
    atom = torch.randint(0, 119, (int(sizes.sum()),), generator=g)
    return [atom, torch.stack([torch.cat([u, v]), torch.cat([v, u])]), torch.cat([attr, attr]), batch, y]


def get_init_inputs():
    return [119, 6, 100, 3, 5, 61, 5]
