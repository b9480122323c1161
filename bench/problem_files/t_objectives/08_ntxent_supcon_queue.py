import torch
import torch.nn as nn
import torch.nn.functional as F


class ProjectionHead(nn.Module):
    def __init__(self, d_in, d_hidden, d_out):
        super().__init__()
        self.fc1 = nn.Linear(d_in, d_hidden, bias=False)
        self.norm = nn.LayerNorm(d_hidden)
        self.fc2 = nn.Linear(d_hidden, d_out)

    def forward(self, x):
        return F.normalize(self.fc2(F.relu(self.norm(self.fc1(x)))), dim=-1)


class Model(nn.Module):
    """SimCLR NT-Xent over two views, SupCon over labels, MoCo style negatives from a queue."""

    def __init__(self, d_in, d_hidden, d_out, queue_len, t_self, t_sup):
        super().__init__()
        self.proj = ProjectionHead(d_in, d_hidden, d_out)
        self.t_self = t_self
        self.t_sup = t_sup
        self.register_buffer("queue", F.normalize(torch.randn(d_out, queue_len), dim=0))

    def nt_xent(self, z):
        n2 = z.size(0)
        n = n2 // 2
        sim = z @ z.t() / self.t_self
        sim.fill_diagonal_(-1e9)
        target = torch.cat([torch.arange(n, n2), torch.arange(0, n)]).to(z.device)
        return F.cross_entropy(sim, target)

    def supcon(self, z, labels):
        labels = labels.contiguous().view(-1, 1)
        mask = torch.eq(labels, labels.T).float()
        logits = torch.div(torch.matmul(z, z.T), self.t_sup)
        logits_max, _ = torch.max(logits, dim=1, keepdim=True)
        logits = logits - logits_max.detach()
        logits_mask = 1.0 - torch.eye(z.shape[0], device=z.device)
        mask = mask * logits_mask
        exp_logits = torch.exp(logits) * logits_mask
        log_prob = logits - torch.log(exp_logits.sum(1, keepdim=True))
        return -((mask * log_prob).sum(1) / mask.sum(1)).mean()

    def moco(self, q, k):
        l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue])
        logits = torch.cat([l_pos, l_neg], dim=1) / self.t_self
        return F.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long, device=q.device))

    def forward(self, v1, v2, labels):
        z1, z2 = self.proj(v1), self.proj(v2)
        z = torch.cat([z1, z2], 0)
        loss = self.nt_xent(z) + self.supcon(z, labels.repeat(2))
        return loss + 0.5 * self.moco(z1, z2.detach())


def get_inputs():
    base = torch.randn(72, 320)
    return [
        base + 0.5 * torch.randn_like(base),
        base + 0.5 * torch.randn_like(base),
        torch.randint(0, 11, (72,)),
    ]


def get_init_inputs():
    return [320, 256, 96, 1500, 0.2, 0.1]
