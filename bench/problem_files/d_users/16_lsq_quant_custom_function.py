import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function


class LSQ(Function):
    """Learned step size quantiser; second output is the integer code, not differentiable."""

    @staticmethod
    def forward(ctx, x, step, qmin, qmax, gscale):
        v = x / step
        code = torch.clamp(torch.round(v), qmin, qmax)
        ctx.save_for_backward(v, step, code)
        ctx.extra, ints = (qmin, qmax, gscale), code.to(torch.int8)
        ctx.mark_non_differentiable(ints)
        return code * step, ints

    @staticmethod
    def backward(ctx, g, _g_ints):
        v, step, code = ctx.saved_tensors
        qmin, qmax, gscale = ctx.extra
        inside = (v >= qmin) & (v <= qmax)
        gx = g * inside
        gs = (g * torch.where(inside, code - v, code)) * gscale
        reduce = [i for i in range(g.dim()) if step.dim() == 0 or step.shape[i] == 1]
        gs = gs.sum(reduce, keepdim=step.dim() > 0).reshape(step.shape)
        return gx, gs, None, None, None


class InplaceClip(Function):
    @staticmethod
    def forward(ctx, x, bound):
        over = x.abs() > bound
        x.clamp_(-bound, bound)
        ctx.mark_dirty(x)
        ctx.save_for_backward(over)
        return x

    @staticmethod
    def backward(ctx, g):
        return torch.where(ctx.saved_tensors[0], 0.1 * g, g), None


class Observer(nn.Module):
    def __init__(self, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("lo", torch.tensor(float("inf")))
        self.register_buffer("hi", torch.tensor(float("-inf")))
        self.register_buffer("hist", torch.zeros(32))

    @torch.no_grad()
    def forward(self, x):
        lo, hi = torch.aminmax(x)
        first = torch.isinf(self.lo)
        self.lo.copy_(torch.where(first, lo, self.lo.lerp(lo, self.momentum)))
        self.hi.copy_(torch.where(first, hi, self.hi.lerp(hi, self.momentum)))
        b = ((x - self.lo) / (self.hi - self.lo) * 32).long().clamp_(0, 31).flatten()
        self.hist.mul_(0.9).add_(torch.bincount(b, minlength=32).to(self.hist) / b.numel())
        return (self.hi - self.lo) / 255.0, self.lo


class QConv(nn.Module):
    def __init__(self, cin, cout, bits=8, stride=1):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cout, cin, 3, 3) * (2 / (9 * cin)) ** 0.5)
        self.qmax = 2 ** (bits - 1) - 1
        amax = self.weight.detach().abs().amax((1, 2, 3), keepdim=True)
        self.step = nn.Parameter(amax / self.qmax)
        self.stride = stride

    def forward(self, x):
        gs = (self.weight[0].numel() * self.qmax) ** -0.5
        w, codes = LSQ.apply(self.weight, self.step, -self.qmax - 1, self.qmax, gs)
        return F.conv2d(x, w, stride=self.stride, padding=1), codes


class Model(nn.Module):
    """Quantisation-aware ConvNet: LSQ custom Function, in-place clip, observers, fp16 and int8 tails."""

    def __init__(self, cin, width, classes):
        super().__init__()
        self.obs, self.fc = Observer(), nn.Linear(width, classes)
        self.convs = nn.ModuleList([QConv(cin, width), QConv(width, width, bits=4, stride=2)])
        self.bn = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(2))

    @staticmethod
    def ste(x, scale, zero):
        q = torch.round((x - zero) / scale).clamp(0, 255)
        y = q * scale + zero
        return x + (y - x).detach(), q.to(torch.uint8)

    def forward(self, x):
        scale, zero = self.obs(x)
        h, qx = self.ste(x, scale, zero)
        all_codes = []
        for conv, bn in zip(self.convs, self.bn):
            h, codes = conv(h)
            h = InplaceClip.apply(bn(h), 2.5)
            h = F.silu(h)
            all_codes.append(codes.flatten())
        pooled = h.half().float().mean((2, 3))
        logits = self.fc(pooled)
        # integer reference of the last layer: int8 x int8 accumulated in int32
        with torch.no_grad():
            sw = self.fc.weight.abs().amax(1, keepdim=True) / 127
            iw = torch.round(self.fc.weight / sw).to(torch.int32)
            ia = torch.floor(qx.float().mean((2, 3)) / 2).to(torch.int32)
            acc = (iw[None, :, : ia.shape[1]] * ia[:, None, :]).sum(-1)
        sparsity = (torch.cat(all_codes) == 0).float().mean()
        return logits, qx, acc, sparsity, self.obs.hist.bfloat16()


def get_inputs():
    return [torch.randn(6, 3, 56, 56)]


def get_init_inputs():
    return [3, 24, 10]
