import torch
import torch.nn as nn
import torch.nn.functional as F


class GATv2Dense(nn.Module):
    def __init__(self, in_f, edge_f, out_f, heads, concat=True, slope=0.2):
        super().__init__()
        self.h, self.f, self.concat, self.slope = heads, out_f, concat, slope
        self.lin_l = nn.Linear(in_f, heads * out_f)
        self.lin_r = nn.Linear(in_f, heads * out_f)
        self.lin_e = nn.Linear(edge_f, heads * out_f, bias=False)
        self.att = nn.Parameter(torch.empty(1, 1, 1, heads, out_f))
        self.bias = nn.Parameter(torch.zeros(heads * out_f if concat else out_f))
        self.edge_out = nn.Linear(heads * out_f, edge_f)
        nn.init.xavier_uniform_(self.att)

    def forward(self, x, adj, e):
        B, N, _ = x.shape
        xl = self.lin_l(x).view(B, N, self.h, self.f)
        xr = self.lin_r(x).view(B, N, self.h, self.f)
        s = xl[:, None, :] + xr[:, :, None] + self.lin_e(e).view(B, N, N, self.h, self.f)
        s = F.leaky_relu(s, self.slope)
        logits = (s * self.att).sum(-1)                               # B N N H
        logits = torch.where(adj[..., None], logits, torch.full_like(logits, -9e15))
        alpha = logits.softmax(dim=2)
        alpha = alpha * adj.any(-1)[:, :, None, None]                 # isolated nodes get nothing
        out = torch.einsum("bijh,bjhf->bihf", alpha, xl)
        out = out.flatten(2) if self.concat else out.mean(2)
        e = e + F.elu(self.edge_out(s.flatten(3))) * adj[..., None]
        return out + self.bias, e, alpha


class Model(nn.Module):
    """Two GATv2 layers on a dense batched adjacency with edge features and Laplacian positional trick."""

    def __init__(self, in_f, edge_f, hid, heads, classes):
        super().__init__()
        self.pe = nn.Linear(4, in_f)
        self.g1 = GATv2Dense(in_f, edge_f, hid, heads)
        self.res = nn.Linear(in_f, heads * hid)
        self.bn = nn.BatchNorm1d(heads * hid)
        self.g2 = GATv2Dense(heads * hid, edge_f, hid, heads, concat=False)
        self.cls = nn.Linear(2 * hid, classes)

    def forward(self, x, adj, e):
        B, N, _ = x.shape
        eye = torch.eye(N, dtype=torch.bool, device=x.device)
        adj = (adj | adj.transpose(1, 2)) | eye
        e = 0.5 * (e + e.transpose(1, 2))
        # random walk return probabilities
        A = adj.float()
        P = A / A.sum(-1, keepdim=True).clamp(min=1)
        M, diag = P, []
        for _ in range(4):
            diag.append(M.diagonal(dim1=-2, dim2=-1))
            M = M @ P
        x = x + self.pe(torch.stack(diag, dim=-1))
        h, e, _ = self.g1(x, adj, e)
        h = F.elu(h) + self.res(x)
        h = self.bn(h.view(B * N, -1)).view(B, N, -1)
        h, e, alpha = self.g2(h, adj, e)
        pooled = torch.cat([h.mean(1), h.amax(1)], dim=-1)
        return self.cls(pooled), alpha, e


def get_inputs():
    return [torch.randn(3, 25, 12), torch.rand(3, 25, 25) < 0.12, torch.randn(3, 25, 25, 5)]


def get_init_inputs():
    return [12, 5, 8, 3, 6]
