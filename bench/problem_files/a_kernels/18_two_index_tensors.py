import torch
import torch.nn as nn


class Model(nn.Module):
    """Adjacent and separated pairs of index tensors, negative indices, take_along_dim, picks from stacks."""

    def __init__(self, m, p):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, m) * 0.5)
        self.e = nn.Parameter(torch.randn(p))

    def forward(self, x, i, j, k):
        b, n, m = x.shape
        y = x * torch.sigmoid(self.w[0])
        a = y[:, i, j]
        sep = y[k, :, j[:k.shape[0]]]
        blk = y[k[:23, None], i[None, :17]]
        low = torch.argsort(y, dim=1)[:, :9]
        near = torch.take_along_dim(y, low, 1)
        pick = torch.take_along_dim(x, low.flip(2), 1) * self.w[1]
        st = torch.stack([y.sum(1), y.amax(1), y[:, -1], x.flip(1)[:, 3] * self.w[2]])
        sel = st[(i[:b] % 4), torch.arange(b, device=x.device)]
        perm = torch.argsort((torch.arange(m, device=x.device) * 29 + 7) % m)
        z = y.index_select(2, perm).flip(2) + sel.unsqueeze(1)
        z = z[:, torch.cat([torch.arange(n - 1, -1, -2, device=x.device), k % n])]
        win = (a * self.e).view(b, -1, 7).argmax(2)
        back = a.view(b, -1, 7).gather(2, win.unsqueeze(2)).squeeze(2)
        r = sep.sum(0)[i % n] - blk.mean((0, 1))[j]
        acc = torch.zeros_like(x[0]).index_put((i % n, j), r * self.e, accumulate=True)
        out = torch.tanh(z) + acc[k.sum(0, keepdim=True) % n]
        return out, near - pick, back, acc, (i // 3 - torch.div(i, 3, rounding_mode="trunc")).sum(), win


def get_inputs():
    i, j = torch.randint(-211, 211, (1015,)), torch.randint(0, 127, (1015,))
    return [torch.randn(37, 211, 127), i, j, torch.randint(-37, 37, (61,))]


def get_init_inputs():
    return [127, 1015]
