import torch
import torch.nn as nn
import torch.nn.functional as F


class SwiGLU(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.w12 = nn.Linear(d, 2 * h, bias=False)
        self.w3 = nn.Linear(h, d, bias=False)

    def forward(self, x):
        a, b = self.w12(x).chunk(2, -1)
        return self.w3(F.silu(a) * b)


class Identity(nn.Module):
    def forward(self, x):
        return x * 1.0


class ConvExpert(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.c = nn.Conv1d(d, d, 3, padding=1, groups=d)

    def forward(self, x):
        return self.c(x.t().unsqueeze(0)).squeeze(0).t()


class Model(nn.Module):
    """Top-2 mixture of experts with capacity, bf16 autocast inside, float32 router, aux losses."""

    def __init__(self, d=64, k=2, cap=96):
        super().__init__()
        self.k, self.cap = k, cap
        self.norm = nn.RMSNorm(d)
        self.router = nn.Linear(d, 4, bias=False)
        self.experts = nn.ModuleDict({
            "glu_a": SwiGLU(d, 96), "glu_b": SwiGLU(d, 48), "skip": Identity(), "conv": ConvExpert(d)})
        self.out = nn.Linear(d, d)
        self.register_buffer("bias", torch.zeros(4))
        self.register_buffer("load", torch.zeros(4, dtype=torch.float64))

    def forward(self, x):
        B, T, D = x.shape
        E = len(self.experts)
        tok = self.norm(x).reshape(-1, D)
        N = tok.shape[0]
        with torch.autocast(x.device.type, enabled=False):
            logits = self.router(tok.float())
            probs = logits.softmax(-1)
        _, idx = torch.topk(probs + self.bias, self.k, dim=-1)
        w = probs.gather(1, idx)
        w = w / w.sum(-1, keepdim=True)
        # position of each token in its expert's queue, first choices go first
        onehot = F.one_hot(idx.t().reshape(-1), E)                      # k*N, E
        pos = (onehot.cumsum(0) - 1).mul(onehot).sum(-1).view(self.k, N).t()
        keep = pos < self.cap
        slot = torch.where(keep, idx * self.cap + pos, E * self.cap)
        buf = x.new_zeros(E * self.cap + 1, D)
        buf = buf.index_copy(0, slot.t().reshape(-1), tok.repeat(self.k, 1))[:-1].view(E, self.cap, D)
        y = torch.empty_like(buf)
        with torch.autocast(device_type=x.device.type, dtype=torch.bfloat16):
            for i, (name, ex) in enumerate(self.experts.items()):
                r = ex(buf[i])
                if name.startswith("glu"):
                    assert r.dtype == torch.bfloat16
                y[i] = r
        flat = torch.cat([y.view(-1, D), y.new_zeros(1, D)])
        comb = (flat[slot] * (w * keep)[..., None]).sum(1)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            h = self.out(comb)
            sc = torch.matmul(h.view(B, T, D), x.transpose(1, 2))
            att = sc.softmax(-1)                                        # float32 by autocast rules
        out = x + h.to(x.dtype).view(B, T, D) + 0.1 * torch.bmm(att.float(), x)
        # losses and load balancing without gradients
        frac = F.one_hot(idx, E).sum(1).float().mean(0)
        aux = E * (frac * probs.mean(0)).sum() / self.k
        z = torch.logsumexp(logits, -1).square().mean()
        if self.training:
            self.bias -= 0.01 * torch.sign(frac - frac.mean())
            self.load += frac.double()
        dropped = (~keep).sum()
        half = (out.half() * 2).to(torch.bfloat16).float()
        return out, aux, z, dropped, half.mean(-1), self.load.float()


def get_inputs():
    return [torch.randn(4, 64, 64)]


def get_init_inputs():
    return [64, 2, 96]
