import torch
import torch.nn as nn
import torch.nn.functional as F


class GCNLayer(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o, bias=False)
        self.bias = nn.Parameter(torch.zeros(o))

    def forward(self, x, src, dst, norm):
        h = self.lin(x)
        out = torch.zeros_like(h).index_add_(0, dst, h[src] * norm[:, None])
        return out + self.bias


class Model(nn.Module):
    """GAE link prediction, Laplacian smoothness, MinCut pooling, DGI-style readout contrast."""

    def __init__(self, d_in, d_hid, clusters):
        super().__init__()
        self.g1 = GCNLayer(d_in, d_hid)
        self.g2 = GCNLayer(d_hid, d_hid)
        self.assign = nn.Linear(d_hid, clusters)
        self.bilinear = nn.Parameter(torch.randn(d_hid, d_hid) * d_hid ** -0.5)
        self.k = clusters

    def encode(self, x, src, dst, norm):
        return self.g2(F.relu(self.g1(x, src, dst, norm)), src, dst, norm)

    def forward(self, x, edge_index, neg_edges, perm):
        n = x.size(0)
        loops = torch.arange(n, device=x.device)
        src = torch.cat((edge_index[0], loops))
        dst = torch.cat((edge_index[1], loops))
        deg = torch.zeros(n, device=x.device).scatter_add_(0, dst, torch.ones_like(dst, dtype=x.dtype))
        dis = deg.clamp(min=1).pow(-0.5)
        norm = dis[src] * dis[dst]
        z = self.encode(x, src, dst, norm)

        pos = (z[edge_index[0]] * z[edge_index[1]]).sum(-1)
        neg = (z[neg_edges[0]] * z[neg_edges[1]]).sum(-1)
        recon = F.softplus(-pos).mean() + F.softplus(neg).mean()

        diff = z[src] * dis[src, None] - z[dst] * dis[dst, None]
        smooth = diff.pow(2).sum(-1).mean()

        s = self.assign(z).softmax(-1)
        agg = torch.zeros_like(s).index_add_(0, dst, s[src])
        cut_num = torch.einsum("nk,nk->", s, agg)
        cut_den = torch.einsum("nk,n,nk->", s, deg, s)
        ss = s.t() @ s
        eye = torch.eye(self.k, device=x.device)
        ortho = torch.norm(ss / torch.norm(ss) - eye / self.k ** 0.5)

        zc = self.encode(x[perm], src, dst, norm)
        summary = torch.sigmoid(z.mean(0))
        v = self.bilinear @ summary
        dgi = F.binary_cross_entropy_with_logits(z @ v, torch.ones(n)) + F.binary_cross_entropy_with_logits(
            zc @ v, torch.zeros(n)
        )
        return recon + 0.1 * smooth - cut_num / cut_den + ortho + dgi


def get_inputs():
    n, e = 611, 3900
    return [torch.randn(n, 50), torch.randint(0, n, (2, e)), torch.randint(0, n, (2, e)), torch.randperm(n)]


def get_init_inputs():
    return [50, 36, 9]
