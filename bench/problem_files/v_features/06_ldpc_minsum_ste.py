import torch
import torch.nn as nn


class HardBit(torch.autograd.Function):
    """llr < 0 as a bit; backward of a clipped sigmoid (straight through)."""

    @staticmethod
    def forward(ctx, llr, temperature):
        ctx.save_for_backward(llr)
        ctx.temperature = temperature
        return (llr < 0).to(llr.dtype)

    @staticmethod
    def backward(ctx, g):
        (llr,) = ctx.saved_tensors
        p = torch.special.expit(-llr / ctx.temperature)
        return -g * p * (1 - p) / ctx.temperature, None


class Model(nn.Module):
    """Neural normalised min-sum decoding of an array LDPC code; the check update takes
    the two smallest magnitudes, the parity of signs, and a learned attenuation."""

    def __init__(self, p, j, k, iters):
        super().__init__()
        self.n, self.m = p * k, p * j
        r = torch.arange(p)
        rows, cols = [], []
        for a in range(j):
            for c in range(k):
                rows.append(a * p + r)
                cols.append(c * p + torch.remainder(r - a * c, p))
        row, col = torch.cat(rows), torch.cat(cols)
        order = torch.argsort(row, stable=True)
        self.register_buffer("check_vars", col[order].view(self.m, k))
        edge_of_var = torch.argsort(col[order], stable=True)
        self.register_buffer("var_edges", edge_of_var.view(self.n, j))
        self.alpha = nn.Parameter(torch.full((iters,), 1.2))
        self.offset = nn.Parameter(torch.full((iters, 1, 1), 0.02))

    def forward(self, llr):
        b = llr.shape[0]
        m, k = self.check_vars.shape
        to_check = llr[:, self.check_vars]  # b m k
        lane = torch.arange(k).view(1, 1, k)
        soft = llr
        trail = []
        for it in range(self.alpha.shape[0]):
            mag = to_check.abs()
            two, where = mag.topk(2, dim=-1, largest=False)
            is_first = lane == where[..., :1]
            least = torch.where(is_first, two[..., 1:], two[..., :1])
            neg = to_check < 0
            parity = neg.sum(-1, keepdim=True, dtype=torch.int32) & 1
            odd = parity.bool() ^ neg
            gain = torch.special.expit(self.alpha[it])
            least = (gain * least - self.offset[it]).clamp(min=0)
            to_var = torch.where(odd, -least, least)
            gathered = to_var.reshape(b, m * k)[:, self.var_edges]  # b n j
            soft = llr + gathered.sum(-1)
            to_check = (soft[:, self.check_vars] - to_var).clamp(-20.0, 20.0)
            trail.append(soft)
        bits = HardBit.apply(soft, 2.0)
        syndrome = bits.detach().to(torch.int32)[:, self.check_vars].sum(-1).remainder(2)
        unsatisfied = syndrome.sum(1).to(torch.int16)
        flipped = (torch.signbit(soft) ^ torch.signbit(llr)).sum(1)
        loss = torch.stack([nn.functional.softplus(-s).mean(1) for s in trail], 1)
        return soft, bits, unsatisfied, flipped, loss


def get_inputs():
    # the all-zero word through a Gaussian channel
    y = 1.0 + 0.75 * torch.randn(23, 7 * 37)
    return [2.0 * y / 0.75**2]


def get_init_inputs():
    return [37, 3, 7, 6]
