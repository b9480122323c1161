import torch
import torch.nn as nn
import torch.nn.functional as F


def scatter_softmax(src, index, num_nodes):
    """Softmax of src (E, H) over the edges that share a target node."""
    idx = index.unsqueeze(-1).expand_as(src)
    maxi = torch.full((num_nodes, src.size(1)), float("-inf"), dtype=src.dtype, device=src.device)
    maxi = maxi.scatter_reduce(0, idx, src.detach(), reduce="amax", include_self=True)
    ex = (src - maxi.index_select(0, index)).exp()
    denom = torch.zeros(num_nodes, src.size(1), dtype=src.dtype, device=src.device).index_add(0, index, ex)
    return ex / (denom.index_select(0, index) + 1e-16)


class GATv2Layer(nn.Module):
    def __init__(self, d_in, d_out, heads, d_edge, concat=True):
        super().__init__()
        self.heads, self.d_out, self.concat = heads, d_out, concat
        self.lin_l = nn.Linear(d_in, heads * d_out)
        self.lin_r = nn.Linear(d_in, heads * d_out)
        self.lin_edge = nn.Linear(d_edge, heads * d_out, bias=False)
        self.att = nn.Parameter(torch.empty(1, heads, d_out))
        nn.init.xavier_uniform_(self.att)
        width = heads * d_out if concat else d_out
        self.bias = nn.Parameter(torch.zeros(width))
        self.res = nn.Linear(d_in, width, bias=False)

    def forward(self, x, edge_index, edge_attr):
        N, H, C = x.shape[0], self.heads, self.d_out
        src, dst = edge_index[0], edge_index[1]
        x_l = self.lin_l(x).view(N, H, C)
        x_r = self.lin_r(x).view(N, H, C)
        e = self.lin_edge(edge_attr).view(-1, H, C)
        x_j = x_l[src]
        m = F.leaky_relu(x_j + x_r[dst] + e, 0.2)
        alpha = (m * self.att).sum(dim=-1).float()
        alpha = scatter_softmax(alpha, dst, N).to(x.dtype)
        out = torch.zeros(N, H, C, dtype=x.dtype, device=x.device)
        out = out.index_add(0, dst, x_j * alpha.unsqueeze(-1))
        out = out.reshape(N, H * C) if self.concat else out.mean(dim=1)
        return out + self.res(x) + self.bias, alpha


class GraphNorm(nn.Module):
    """Per-graph mean and variance with a learnable mean scale."""

    def __init__(self, d, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))
        self.mean_scale = nn.Parameter(torch.ones(d))

    def forward(self, x, batch, n_graphs):
        x32 = x.float()
        cnt = torch.zeros(n_graphs, device=x.device).index_add(0, batch, torch.ones_like(x32[:, 0])).clamp(min=1)
        mean = torch.zeros(n_graphs, x.size(1), device=x.device).index_add(0, batch, x32) / cnt[:, None]
        out = x32 - mean[batch] * self.mean_scale.float()
        var = torch.zeros_like(mean).index_add(0, batch, out * out) / cnt[:, None]
        out = out / (var[batch] + self.eps).sqrt()
        return (out * self.weight.float() + self.bias.float()).to(x.dtype)


class Model(nn.Module):
    def __init__(self, d_in, d_hidden, heads, d_edge, n_types, n_graphs, n_out):
        super().__init__()
        self.n_graphs = n_graphs
        self.type_emb = nn.Embedding(n_types, d_in)
        self.conv1 = GATv2Layer(d_in, d_hidden, heads, d_edge)
        self.norm1 = GraphNorm(heads * d_hidden)
        self.conv2 = GATv2Layer(heads * d_hidden, d_hidden, heads, d_edge, concat=False)
        self.norm2 = GraphNorm(d_hidden)
        self.gate = nn.Linear(d_hidden, 1)
        self.out = nn.Sequential(nn.Linear(2 * d_hidden, d_hidden), nn.ELU(), nn.Linear(d_hidden, n_out))

    def forward(self, x, node_type, edge_index, edge_attr, batch):
        x = x + self.type_emb(node_type)
        # self loops, with the mean edge feature
        N = x.size(0)
        loop = torch.arange(N, device=x.device)
        edge_index = torch.cat([edge_index, loop.unsqueeze(0).expand(2, -1)], dim=1)
        edge_attr = torch.cat([edge_attr, edge_attr.mean(0, keepdim=True).expand(N, -1)], dim=0)

        h, _ = self.conv1(x, edge_index, edge_attr)
        h = F.elu(self.norm1(h, batch, self.n_graphs))
        h, alpha = self.conv2(h, edge_index, edge_attr)
        h = F.elu(self.norm2(h, batch, self.n_graphs))

        w = scatter_softmax(self.gate(h).float(), batch, self.n_graphs).to(h.dtype)
        zeros = torch.zeros(self.n_graphs, h.size(1), dtype=h.dtype, device=h.device)
        pooled = zeros.index_add(0, batch, w * h)
        maxed = zeros.scatter_reduce(0, batch[:, None].expand_as(h), h, reduce="amax", include_self=False)
        return self.out(torch.cat([pooled, maxed], dim=-1)), alpha


def get_inputs():
    N, E, G = 16384, 131072, 64
    batch = torch.randint(0, G, (N,)).sort().values
    return [
        torch.randn(N, 128), torch.randint(0, 32, (N,)), torch.randint(0, N, (2, E)), torch.randn(E, 16), batch,
    ]


def get_init_inputs():
    return [128, 64, 8, 16, 32, 64, 10]
