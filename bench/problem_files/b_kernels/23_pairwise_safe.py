import torch
import torch.nn as nn


class Model(nn.Module):
    """Batch-hard style metric loss: safe pairwise distances with zero diagonal, Gram form and direct form, bandwidth kernel."""

    def __init__(self, din, dout):
        super().__init__()
        self.proj = nn.Linear(din, dout)
        self.margin = nn.Parameter(torch.tensor(0.4))

    def forward(self, x, label):
        e = torch.tanh(self.proj(x))
        n = e.shape[0]
        diff = e[:, None, :] - e[None, :, :]
        sq = diff.square().sum(-1)
        zero = sq == 0                                             # diagonal and duplicate points
        d = torch.where(zero, torch.zeros_like(sq), torch.where(zero, torch.ones_like(sq), sq).sqrt())
        gram = e @ e.t()
        nn_ = gram.diagonal()
        sq2 = (nn_[:, None] + nn_[None, :] - 2 * gram).clamp(min=0)
        same = label[:, None] == label[None, :]
        eye = torch.eye(n, dtype=torch.bool, device=x.device)
        pos = d.masked_fill(~same | eye, float("-inf")).amax(1)
        neg, who = d.masked_fill(same, float("inf")).min(1)
        has = (same & ~eye).any(1)
        loss = torch.where(has, torch.relu(torch.where(has, pos, neg) - neg + self.margin), torch.zeros_like(neg))
        bw = d.sum() / (n * (n - 1))
        kern = torch.exp(-sq2 / (2 * bw * bw)).masked_fill(eye, 0.0)
        row = kern / kern.sum(1, keepdim=True).clamp_min(1e-12)
        l1 = diff.abs().amax(-1)
        return loss * e[who].square().sum(1), row @ x, l1 - d, d.logsumexp(dim=(0, 1)), who


def get_inputs():
    x = torch.randn(151, 47)
    x[10:15] = x[40:45]                                            # exact duplicates
    return [x, torch.randint(0, 40, (151,))]


def get_init_inputs():
    return [47, 31]
