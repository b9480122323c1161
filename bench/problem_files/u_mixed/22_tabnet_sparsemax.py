import torch
import torch.nn as nn
import torch.nn.functional as F


def sparsemax(x, dim=-1):
    z, _ = torch.sort(x, dim=dim, descending=True)
    k = torch.arange(1, x.size(dim) + 1, device=x.device, dtype=x.dtype)
    cs = z.cumsum(dim)
    support = (1 + k * z) > cs
    size = support.sum(dim=dim, keepdim=True)
    tau = (cs.gather(dim, size - 1) - 1) / size.to(x.dtype)
    return torch.clamp(x - tau, min=0)


class GBN(nn.Module):
    """Ghost batch norm."""

    def __init__(self, dim, vbs):
        super().__init__()
        self.vbs = vbs
        self.bn = nn.BatchNorm1d(dim, momentum=0.02)

    def forward(self, x):
        n = -(-x.shape[0] // self.vbs)
        return torch.cat([self.bn(c) for c in x.chunk(n, 0)], dim=0)


class GLULayer(nn.Module):
    def __init__(self, i, o, vbs, fc=None):
        super().__init__()
        self.o = o
        self.fc = fc if fc is not None else nn.Linear(i, 2 * o, bias=False)
        self.bn = GBN(2 * o, vbs)

    def forward(self, x):
        x = self.bn(self.fc(x))
        return x[:, : self.o] * torch.sigmoid(x[:, self.o :])


class FeatTransformer(nn.Module):
    def __init__(self, i, o, shared, vbs):
        super().__init__()
        self.shared = nn.ModuleList([GLULayer(i if j == 0 else o, o, vbs, fc) for j, fc in enumerate(shared)])
        self.spec = nn.ModuleList([GLULayer(o, o, vbs) for _ in range(2)])

    def forward(self, x):
        scale = 0.5 ** 0.5
        x = self.shared[0](x)
        for layer in [*self.shared[1:], *self.spec]:
            x = (x + layer(x)) * scale
        return x


class Model(nn.Module):
    """TabNet encoder with categorical embeddings, sparsemax masks and explanation output."""

    def __init__(self, n_num, cards, emb, n_d, n_a, steps, classes, gamma=1.3, vbs=32):
        super().__init__()
        self.n_d, self.gamma = n_d, gamma
        self.embs = nn.ModuleList(nn.Embedding(c, emb) for c in cards)
        inp = n_num + emb * len(cards)
        self.bn0 = nn.BatchNorm1d(inp, momentum=0.01)
        o = n_d + n_a
        shared = nn.ModuleList([nn.Linear(inp, 2 * o, bias=False), nn.Linear(o, 2 * o, bias=False)])
        self.init_split = FeatTransformer(inp, o, shared, vbs)
        self.feat = nn.ModuleList(FeatTransformer(inp, o, shared, vbs) for _ in range(steps))
        self.att_fc = nn.ModuleList(nn.Linear(n_a, inp, bias=False) for _ in range(steps))
        self.att_bn = nn.ModuleList(GBN(inp, vbs) for _ in range(steps))
        self.head = nn.Linear(n_d, classes, bias=False)

    def forward(self, x_num, x_cat):
        x = torch.cat([x_num] + [e(x_cat[:, i]) for i, e in enumerate(self.embs)], dim=1)
        x = self.bn0(x)
        prior = torch.ones_like(x)
        explain = torch.zeros_like(x)
        M_loss = 0
        att = self.init_split(x)[:, self.n_d :]
        steps_out = []
        for feat, fc, bn in zip(self.feat, self.att_fc, self.att_bn):
            M = sparsemax(bn(fc(att)) * prior)
            M_loss += torch.mean(torch.sum(torch.mul(M, torch.log(M + 1e-15)), dim=1))
            prior = torch.mul(self.gamma - M, prior)
            out = feat(M * x)
            d = F.relu(out[:, : self.n_d])
            steps_out.append(d)
            explain += M * d.detach().sum(dim=1, keepdim=True)
            att = out[:, self.n_d :]
        res = torch.sum(torch.stack(steps_out, dim=0), dim=0)
        return self.head(res), M_loss / len(self.feat), explain


def get_inputs():
    return [torch.randn(70, 9), torch.stack([torch.randint(0, 5, (70,)), torch.randint(0, 11, (70,)), torch.randint(0, 3, (70,))], 1)]


def get_init_inputs():
    return [9, [5, 11, 3], 4, 8, 8, 3, 4]
