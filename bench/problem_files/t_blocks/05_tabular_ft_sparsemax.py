import torch
import torch.nn as nn
import torch.nn.functional as F


def sparsemax(z):
    s, _ = torch.sort(z, dim=-1, descending=True)
    k = torch.arange(1, z.size(-1) + 1, device=z.device, dtype=z.dtype)
    cs = s.cumsum(-1) - 1
    support = (k * s > cs).sum(-1, keepdim=True)
    tau = cs.gather(-1, support - 1) / support.to(z.dtype)
    return torch.clamp(z - tau, min=0)


class Model(nn.Module):
    """Tabular model: TabNet-style sparsemax feature steps, then a feature-tokeniser transformer layer
    with ReGLU, read out from a CLS token."""

    def __init__(self, num, cards, d, heads, steps, out):
        super().__init__()
        self.steps, self.h = steps, heads
        self.w = nn.Parameter(torch.randn(num, d) * 0.2)
        self.b = nn.Parameter(torch.randn(num + len(cards), d) * 0.1)
        self.register_buffer("off", torch.tensor([0] + list(cards[:-1])).cumsum(0))
        self.emb = nn.Embedding(sum(cards), d)
        self.cls = nn.Parameter(torch.randn(1, 1, d) * 0.1)
        self.bn = nn.BatchNorm1d(num)
        self.att = nn.ModuleList([nn.Linear(24, num) for _ in range(steps)])
        self.feat = nn.Linear(num, 2 * 24)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(2 * d, d)
        self.head = nn.Linear(d + 24, out)

    def forward(self, xn, xc):
        x = self.bn(xn)
        prior = torch.ones_like(x)
        h = F.glu(self.feat(x), -1)
        total = torch.zeros_like(h)
        mask_sum = torch.zeros_like(x)
        for att in self.att:
            m = sparsemax(att(h) * prior)
            prior = prior * (1.3 - m)
            h = F.glu(self.feat(m * x), -1)
            total = total + F.relu(h)
            mask_sum = mask_sum + m
        tok = torch.cat([x.unsqueeze(-1) * self.w * (1 + mask_sum.unsqueeze(-1)), self.emb(xc + self.off)], 1)
        z = torch.cat([self.cls.expand(x.size(0), -1, -1), tok + self.b], 1)
        b, n, d = z.shape
        q, k, v = self.qkv(self.n1(z)).view(b, n, 3 * self.h, d // self.h).transpose(1, 2).chunk(3, dim=1)
        a = torch.einsum("bhid,bhjd->bhij", q, k).mul((d // self.h) ** -0.5).softmax(-1)
        z = z + self.o((a @ v).transpose(1, 2).flatten(2))
        u, g = self.up(self.n2(z)).chunk(2, -1)
        z = z + self.down(u * F.relu(g))
        return self.head(torch.cat([F.relu(z[:, 0]), total], -1))


def get_inputs():
    cards = [5, 31, 12, 80]
    return [torch.randn(57, 14), torch.stack([torch.randint(0, c, (57,)) for c in cards], 1)]


def get_init_inputs():
    return [14, [5, 31, 12, 80], 45, 5, 4, 3]
