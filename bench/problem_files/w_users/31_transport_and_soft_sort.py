import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Entropic optimal transport, Gumbel Sinkhorn, NeuralSort, sparsemax/entmax, Wasserstein by
    sorting, soft DTW divergence."""

    def __init__(self, d=12, eps=0.1, iters=12):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(d, 24), nn.Softplus(), nn.Linear(24, d))
        self.log_eps = nn.Parameter(torch.tensor(eps).log())
        self.iters = iters
        self.perm = nn.Linear(d, 16)
        self.gamma = nn.Parameter(torch.tensor(0.5))

    def sinkhorn(self, C, a, b):
        eps = self.log_eps.exp()
        f = torch.zeros_like(a)
        g = torch.zeros_like(b)
        la, lb = a.clamp_min(1e-30).log(), b.clamp_min(1e-30).log()
        for _ in range(self.iters):
            f = -eps * torch.logsumexp((g + eps * lb)[:, None, :] / eps - C / eps, dim=2)
            g = -eps * torch.logsumexp((f + eps * la)[:, :, None] / eps - C / eps, dim=1)
        P = torch.exp((f[:, :, None] + g[:, None, :] - C) / eps + la[:, :, None] + lb[:, None, :])
        return P, (P * C).sum((1, 2))

    @staticmethod
    def sparsemax(z):
        s, _ = torch.sort(z, dim=-1, descending=True)
        k = torch.arange(1, z.size(-1) + 1, device=z.device, dtype=z.dtype)
        cs = s.cumsum(-1)
        support = 1 + k * s > cs
        kz = support.sum(-1, keepdim=True)
        tau = (cs.gather(-1, kz - 1) - 1) / kz.to(z.dtype)
        return torch.clamp(z - tau, min=0)

    @staticmethod
    def entmax15(z, n_iter=18):
        z = (z - z.max(-1, keepdim=True).values) / 2
        lo = z.max(-1, keepdim=True).values - 1
        hi = lo + 1 - z.size(-1) ** -0.5
        with torch.no_grad():
            for _ in range(n_iter):
                mid = (lo + hi) / 2
                m = (z - mid).clamp(min=0).square().sum(-1, keepdim=True)
                lo = torch.where(m >= 1, mid, lo)
                hi = torch.where(m < 1, mid, hi)
        p = (z - lo).clamp_min(0) ** 2
        return p / p.sum(-1, keepdim=True)

    @staticmethod
    def neuralsort(s, tau):
        n = s.size(1)
        s = s.unsqueeze(-1)
        A = (s - s.transpose(1, 2)).abs()
        B = A.sum(-1, keepdim=True).expand(-1, -1, n)
        scal = (n + 1 - 2 * (torch.arange(n, device=s.device) + 1)).to(s.dtype)
        return torch.softmax((s * scal - B).transpose(1, 2) / tau, -1)

    def soft_dtw(self, D):
        B, n, m = D.shape
        g = F.softplus(self.gamma) + 0.1
        R = [[None] * (m + 1) for _ in range(n + 1)]
        big = D.new_full((B,), 1e8)
        for i in range(n + 1):
            R[i][0] = big
        for j in range(m + 1):
            R[0][j] = big
        R[0][0] = torch.zeros_like(big)
        for i in range(1, n + 1):
            for j in range(1, m + 1):
                r = torch.stack([R[i - 1][j - 1], R[i - 1][j], R[i][j - 1]], 0)
                R[i][j] = D[:, i - 1, j - 1] - g * torch.logsumexp(-r / g, 0)
        return R[n][m]

    def forward(self, x, y, wx, gumbel):
        B, n, d = x.shape
        x2 = x + 0.3 * self.f(x)
        C = torch.cdist(x2, y).pow(2) / d
        a = wx / wx.sum(1, keepdim=True)
        b = torch.full(y.shape[:2], 1.0 / y.size(1), device=x.device, dtype=x.dtype)
        P, cost = self.sinkhorn(C, a, b)
        bary = torch.bmm(P, y) / P.sum(2, keepdim=True)
        # gumbel sinkhorn by alternating log normalisation
        la = (self.perm(x2)[:, :16] + gumbel) / 0.7
        for _ in range(8):
            la = la - la.logsumexp(2, keepdim=True)
            la = la - la.logsumexp(1, keepdim=True)
        perm = la.exp()
        greedy = perm.detach().argmax(-1)
        sc = x2.mean(-1)
        S = self.neuralsort(sc, 0.5)
        srt = torch.bmm(S, sc.unsqueeze(-1)).squeeze(-1)
        gap = (srt - sc.sort(1, descending=True).values).abs().mean()
        sp, en = self.sparsemax(sc * 2), self.entmax15(sc)
        theta = F.normalize(torch.sin(torch.arange(d * 5, device=x.device).float()).view(d, 5), dim=0)
        swd = ((x2 @ theta).sort(1)[0] - (y[:, :n] @ theta).sort(1)[0]).square().mean((1, 2)).sqrt()
        small = torch.cdist(x2[:, :7], y[:, :8], p=2)
        dtw = self.soft_dtw(small)
        return cost, bary, perm, greedy, gap, sp, en, swd, dtw, (sp > 0).sum(-1)


def get_inputs():
    return [torch.randn(4, 16, 12), torch.randn(4, 20, 12), torch.rand(4, 16) + 0.1, torch.randn(4, 16, 16)]


def get_init_inputs():
    return [12, 0.1, 12]
