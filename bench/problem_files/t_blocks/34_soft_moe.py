import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Soft mixture of experts: normalised dispatch and combine over slots, batched expert MLPs."""

    def __init__(self, d, experts, slots, hidden):
        super().__init__()
        self.e, self.s = experts, slots
        self.phi = nn.Parameter(torch.randn(d, experts * slots) * d ** -0.5)
        self.scale = nn.Parameter(torch.tensor(4.0))
        self.w1 = nn.Parameter(torch.randn(experts, d, hidden) * d ** -0.5)
        self.b1 = nn.Parameter(torch.zeros(experts, 1, hidden))
        self.w2 = nn.Parameter(torch.randn(experts, hidden, d) * hidden ** -0.5)
        self.b2 = nn.Parameter(torch.zeros(experts, 1, d))
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        b, n, d = x.shape
        y = self.norm(x)
        logits = F.normalize(y, dim=-1) @ (self.scale * F.normalize(self.phi, dim=0))
        dispatch = logits.softmax(dim=1)
        combine = logits.softmax(dim=2)
        xs = torch.einsum("bnp,bnd->bpd", dispatch, y)
        xs = xs.view(b, self.e, self.s, d).transpose(0, 1).reshape(self.e, b * self.s, d)
        h = F.gelu(torch.baddbmm(self.b1, xs, self.w1), approximate="tanh")
        ys = torch.baddbmm(self.b2, h, self.w2)
        ys = ys.view(self.e, b, self.s, d).transpose(0, 1).reshape(b, self.e * self.s, d)
        return x + torch.bmm(combine, ys)


def get_inputs():
    return [torch.randn(5, 147, 62)]


def get_init_inputs():
    return [62, 6, 9, 118]
