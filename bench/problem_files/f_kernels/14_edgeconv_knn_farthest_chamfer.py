import torch
import torch.nn as nn
import torch.nn.functional as F


def sq_dist(a, b):
    return (a.square().sum(-1, keepdim=True) - 2 * a @ b.transpose(1, 2) + b.square().sum(-1).unsqueeze(1)).clamp_min(0)


def take(x, idx):
    flat = idx.reshape(idx.shape[0], -1, 1).expand(-1, -1, x.shape[-1])
    return x.gather(1, flat).view(*idx.shape, x.shape[-1])


class Model(nn.Module):
    def __init__(self, k, width, out, samples):
        super().__init__()
        self.k, self.samples = k, samples
        self.conv1 = nn.Conv2d(6, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, out, 1)
        self.scale = nn.Parameter(torch.rand(width) + 0.5)
        self.shift = nn.Parameter(0.1 * torch.randn(width))
        self.mean = nn.Parameter(0.1 * torch.randn(width))
        self.var = nn.Parameter(torch.rand(width) + 0.5)
        self.offset = nn.Linear(out, 3)

    def farthest(self, p):
        b, n, _ = p.shape
        dist = p.new_full((b, n), 1e10)
        cur = (p - p.mean(1, keepdim=True)).square().sum(-1).argmax(1, keepdim=True)
        picks = []
        for _ in range(self.samples):
            picks.append(cur)
            c = take(p, cur)
            dist = torch.minimum(dist, (p - c).square().sum(-1))
            cur = dist.argmax(1, keepdim=True)
        return torch.cat(picks, 1), dist

    def forward(self, points, target):
        p = points.transpose(1, 2)
        d = sq_dist(p, p)
        idx = d.topk(self.k, dim=-1, largest=False).indices
        nb = take(p, idx)
        centre = p.unsqueeze(2).expand_as(nb)
        f = torch.cat((nb - centre, centre), -1).permute(0, 3, 1, 2)
        f = self.conv1(f)
        g = self.scale * torch.rsqrt(self.var.abs() + 1e-5)
        f = F.leaky_relu(f * g[:, None, None] + (self.shift - self.mean * g)[:, None, None], 0.2)
        f = F.leaky_relu(self.conv2(f), 0.2).amax(-1).transpose(1, 2)
        pick, radius = self.farthest(p)
        sub, sub_f = take(p, pick), take(f, pick)
        near = sq_dist(p, sub)
        three, j = near.topk(3, dim=-1, largest=False)
        w = 1 / (three + 1e-4)
        w = w / w.sum(-1, keepdim=True)
        smooth = (take(sub_f, j) * w.unsqueeze(-1)).sum(2)
        moved = p + 0.1 * torch.tanh(self.offset(smooth + f))
        m = sq_dist(moved, target)
        near_a, near_b = m.amin(2), m.amin(1)
        chamfer = near_a.mean(1) + near_b.mean(1)
        fscore = torch.sigmoid(50 * (0.05 - near_a)).mean(1)
        return moved, chamfer, fscore, radius.amax(1).sqrt()


def get_inputs():
    return [torch.randn(2, 3, 419), torch.randn(2, 307, 3)]


def get_init_inputs():
    return [13, 31, 42, 23]
