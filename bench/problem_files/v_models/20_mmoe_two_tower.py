import torch
import torch.nn as nn
import torch.nn.functional as F


class Tower(nn.Module):
    def __init__(self, fields, dim, dense, out):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(n, dim, max_norm=None) for n in fields])
        self.bags = nn.EmbeddingBag(90, dim, mode="sum", include_last_offset=True)
        width = (len(fields) + 1) * dim + dense
        self.se = nn.Sequential(nn.Linear(len(fields) + 1, 3), nn.ReLU(), nn.Linear(3, len(fields) + 1), nn.Hardsigmoid())
        self.mlp = nn.Sequential(nn.Linear(width, 70), nn.LayerNorm(70), nn.Hardswish(), nn.Linear(70, out))

    def forward(self, ids, dense, bag, offsets, weights):
        e = [t(ids[:, i]) for i, t in enumerate(self.tables)]
        e.append(self.bags(bag, offsets, per_sample_weights=weights))
        e = torch.stack(e, dim=1)
        gate = self.se(e.mean(-1)) + 0.5
        return self.mlp(torch.cat([(e * gate.unsqueeze(-1)).flatten(1), dense], dim=1))


class MMoE(nn.Module):
    def __init__(self, d, experts, hidden, tasks):
        super().__init__()
        self.w = nn.Parameter(torch.randn(experts, d, hidden) * d ** -0.5)
        self.b = nn.Parameter(torch.zeros(experts, hidden))
        self.gates = nn.ModuleList([nn.Linear(d, experts, bias=False) for _ in range(tasks)])
        self.towers = nn.ModuleList([nn.Sequential(nn.Linear(hidden, 20), nn.ELU(), nn.Linear(20, 1)) for _ in range(tasks)])

    def forward(self, x):
        e = F.relu(torch.einsum("...d,edh->...eh", x, self.w) + self.b)
        mixed = [torch.einsum("...eh,...e->...h", e, g(x).softmax(-1)) for g in self.gates]
        return torch.cat([t(m) for t, m in zip(self.towers, mixed)], dim=-1)


class Model(nn.Module):
    """Two-tower retrieval with in-batch softmax corrected by item frequency, then an MMoE ranker over the
    user, the item and their nn.Bilinear product: click, conversion (ESMM product) and dwell time."""

    def __init__(self, user_fields, item_fields, dim, dense, out, experts):
        super().__init__()
        self.user = Tower(user_fields, dim, dense, out)
        self.item = Tower(item_fields, dim, dense, out)
        self.cross = nn.Bilinear(out, out, 12)
        self.mmoe = MMoE(2 * out + 12, experts, 34, 3)
        self.temperature = nn.Parameter(torch.tensor(0.1))
        self.log_sigma = nn.Parameter(torch.zeros(3))

    def forward(self, uids, udense, ubag, uoff, uw, iids, idense, ibag, ioff, iw, logq, click, buy, dwell, session):
        u = self.user(uids, udense, ubag, uoff, uw)
        v = self.item(iids, idense, ibag, ioff, iw)
        sim = F.normalize(u, dim=-1) @ F.normalize(v, dim=-1).T / self.temperature.clamp(min=0.02) - logq
        dup = (iids[:, None] == iids[None]).all(-1)
        dup = dup & ~torch.eye(dup.size(0), dtype=torch.bool, device=dup.device)
        retrieval = (F.cross_entropy(sim.masked_fill(dup, -1e9), torch.arange(sim.size(0), device=sim.device), reduction="none") * (0.2 + click)).mean()
        logits = self.mmoe(torch.cat([u, v, self.cross(u, v)], dim=-1))
        ctr, cvr, time = logits.unbind(-1)
        ctcvr = torch.sigmoid(ctr) * torch.sigmoid(cvr)
        losses = torch.stack([
            F.binary_cross_entropy_with_logits(ctr, click, pos_weight=torch.tensor(3.0, device=click.device)),
            F.binary_cross_entropy(ctcvr.clamp(1e-6, 1 - 1e-6), buy),
            F.poisson_nll_loss(time.clamp(max=6), dwell, log_input=True),
        ])
        total = (losses * torch.exp(-self.log_sigma) + 0.5 * self.log_sigma).sum() + retrieval
        # mean score of each session: segments by index_add
        n = 9
        sums = logits.new_zeros(n, 3).index_add(0, session, logits)
        count = logits.new_zeros(n).index_add(0, session, torch.ones_like(ctr)).clamp(min=1)
        return {"loss": total, "ctcvr": ctcvr, "session": sums / count[:, None]}


def get_inputs():
    B = 39

    def side(fields):
        ids = torch.stack([torch.randint(0, n, (B,)) for n in fields], 1)
        off = torch.linspace(0, 200, B + 1).long()
        off[3] = off[4]
        return [ids, torch.randn(B, 5), torch.randint(0, 90, (200,)), off, torch.rand(200)]

    click = (torch.rand(B) < 0.4).float()
    buy = click * (torch.rand(B) < 0.3).float()
    return [*side([50, 12, 7]), *side([80, 21]), -3 * torch.rand(B), click, buy, torch.poisson(torch.full((B,), 4.0)), torch.randint(0, 9, (B,))]


def get_init_inputs():
    return [[50, 12, 7], [80, 21], 15, 5, 42, 6]
