import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """SwAV swapped prediction with a queue, plus a log-domain Sinkhorn OT alignment cost."""

    def __init__(self, dim, n_proto, epsilon, temperature, n_iters, ot_iters):
        super().__init__()
        self.prototypes = nn.Linear(dim, n_proto, bias=False)
        self.epsilon, self.temperature = epsilon, temperature
        self.n_iters, self.ot_iters = n_iters, ot_iters

    @torch.no_grad()
    def sinkhorn(self, out):
        Q = torch.exp((out - out.max()) / self.epsilon).t()
        B, K = Q.shape[1], Q.shape[0]
        Q = Q / torch.sum(Q)
        for _ in range(self.n_iters):
            Q = Q / torch.sum(Q, dim=1, keepdim=True)
            Q = Q / K
            Q = Q / torch.sum(Q, dim=0, keepdim=True)
            Q = Q / B
        return (Q * B).t()

    def log_ot(self, x, y, eps=0.1):
        cost = 1 - torch.einsum("nd,md->nm", x, y)
        n, m = cost.shape
        f = torch.zeros(n, device=x.device)
        g = torch.zeros(m, device=x.device)
        log_mu = -torch.log(torch.tensor(float(n)))
        log_nu = -torch.log(torch.tensor(float(m)))
        for _ in range(self.ot_iters):
            f = eps * (log_mu - torch.logsumexp((g[None, :] - cost) / eps, dim=1))
            g = eps * (log_nu - torch.logsumexp((f[:, None] - cost) / eps, dim=0))
        plan = torch.exp((f[:, None] + g[None, :] - cost) / eps)
        return (plan * cost).sum()

    def forward(self, z1, z2, queue):
        w = F.normalize(self.prototypes.weight, dim=1, p=2)
        z1, z2 = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
        bs = z1.size(0)
        s1, s2 = z1 @ w.t(), z2 @ w.t()
        sq = F.normalize(queue, dim=1) @ w.t()
        q1 = self.sinkhorn(torch.cat((s1, sq)).detach())[:bs]
        q2 = self.sinkhorn(torch.cat((s2, sq)).detach())[:bs]
        p1 = F.log_softmax(s1 / self.temperature, dim=1)
        p2 = F.log_softmax(s2 / self.temperature, dim=1)
        swap = -0.5 * (torch.mean(torch.sum(q1 * p2, dim=1)) + torch.mean(torch.sum(q2 * p1, dim=1)))
        return swap + self.log_ot(z1, z2)


def get_inputs():
    a = torch.randn(58, 72)
    return [a, a + 0.7 * torch.randn(58, 72), torch.randn(150, 72)]


def get_init_inputs():
    return [72, 130, 0.1, 0.1, 3, 8]
