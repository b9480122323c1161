import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """DLRM / DCN / FM mix on hashed categorical features with embedding bags, and a two tower
    in-batch softmax with log-Q correction and multi-task gates."""

    SIZES = [50, 300, 1000, 7]

    def __init__(self, d=16, n_dense=13, experts=3):
        super().__init__()
        self.bags = nn.ModuleList()
        for i, n in enumerate(self.SIZES):
            mode = ["sum", "mean", "max", "sum"][i]
            self.bags.append(nn.EmbeddingBag(n, d, mode=mode, padding_idx=0 if mode != "max" else None))
        self.first_order = nn.Embedding(sum(self.SIZES), 1)
        self.dense = nn.Sequential(nn.BatchNorm1d(n_dense), nn.Linear(n_dense, 32), nn.ReLU(True), nn.Linear(32, d))
        w = (len(self.SIZES) + 1) * d
        self.cross_u = nn.ParameterList([nn.Parameter(torch.randn(w, 8) * 0.05) for _ in range(2)])
        self.cross_v = nn.ParameterList([nn.Parameter(torch.randn(8, w) * 0.05) for _ in range(2)])
        self.cross_b = nn.Parameter(torch.zeros(2, w))
        self.experts = nn.Parameter(torch.randn(experts, w, 24) * w ** -0.5)
        self.gates = nn.ModuleDict({t: nn.Linear(w, experts) for t in ("click", "buy")})
        self.heads = nn.ModuleDict({t: nn.Linear(24, 1) for t in ("click", "buy")})
        self.item_tower = nn.Linear(w, d)
        self.tau = nn.Parameter(torch.tensor(0.1))
        self.register_buffer("item_count", torch.ones(64))

    @staticmethod
    def hash_ids(ids, n, salt):
        h = ids * 2654435761 + salt
        h = h ^ (h >> 13)
        h = (h * 40503) & 0x7FFFFFFF
        return h % n

    def forward(self, ids, weights, dense, label):
        B, nf, L = ids.shape
        vecs = [self.dense(torch.sign(dense) * torch.log1p(dense.abs()))]
        lin = 0
        off = 0
        for f, bag in enumerate(self.bags):
            n = self.SIZES[f]
            h = self.hash_ids(ids[:, f], n, f * 77)
            if bag.mode == "sum":
                v = bag(h, per_sample_weights=weights[:, f])
            elif f == 1:
                # flat form with offsets
                v = bag(h.reshape(-1), torch.arange(0, B * L, L, device=h.device))
            else:
                v = bag(h)
            vecs += [v]
            lin = lin + self.first_order(h + off).sum(1)
            off += n
        E = torch.stack(vecs, 1)                                   # B, F, d
        fm = 0.5 * (E.sum(1).square() - E.square().sum(1)).sum(1, keepdim=True)
        Z = torch.bmm(E, E.transpose(1, 2))
        i, j = torch.tril_indices(E.size(1), E.size(1), offset=-1, device=E.device).unbind(0)
        inter = Z[:, i, j]
        x0 = E.flatten(1)
        x = x0
        for u, v, b in zip(self.cross_u, self.cross_v, self.cross_b):
            x = torch.addcmul(x, x0, (x @ v.t()) @ u.t() + b)
        ex = F.silu(torch.einsum("bw,ewk->bek", F.layer_norm(x, x.shape[-1:]), self.experts))
        logits = {}
        for task, gate in self.gates.items():
            g = gate(x).softmax(-1)
            logits[task] = (self.heads[task](torch.einsum("be,bek->bk", g, ex)) + lin * 0.1 + 0.01 * fm).squeeze(1)
        p_click = torch.sigmoid(logits["click"])
        p_buy = p_click * torch.sigmoid(logits["buy"])
        # two tower
        user = F.normalize(vecs[0], dim=-1)
        item = F.normalize(self.item_tower(x), dim=-1)
        bucket = ids[:, 2, 0] & 63
        if self.training:
            self.item_count.mul_(0.99)
            self.item_count.index_add_(0, bucket, torch.ones_like(dense[:, 0]))
        logq = torch.log(self.item_count / self.item_count.sum())[bucket]
        sim = user @ item.T / self.tau.clamp(0.02, 1.0) - logq[None]
        same = bucket[:, None] == bucket[None]
        same = same & ~torch.eye(B, dtype=torch.bool, device=same.device)
        sim = sim.masked_fill(same, -1e9)
        nce = F.cross_entropy(sim, torch.arange(B, device=sim.device))
        loss = F.binary_cross_entropy(p_buy.clamp(1e-6, 1 - 1e-6), label.float())
        bpr = -F.logsigmoid(p_click.unsqueeze(1) - p_click.unsqueeze(0))
        bpr = (bpr * ((label[:, None] - label[None, :]) > 0)).sum() / (B * B)
        return loss, nce, bpr, inter, p_click, p_buy


def get_inputs():
    B = 256
    return [torch.randint(0, 1 << 20, (B, 4, 6)), torch.rand(B, 4, 6), torch.randn(B, 13) * 5, torch.randint(0, 2, (B,))]


def get_init_inputs():
    return [16, 13, 3]
