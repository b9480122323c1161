import torch
import torch.nn as nn
import torch.nn.functional as F


class Residual(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.bn = nn.ModuleList([nn.BatchNorm2d(i), nn.BatchNorm2d(o // 2), nn.BatchNorm2d(o // 2)])
        self.conv = nn.ModuleList([nn.Conv2d(i, o // 2, 1), nn.Conv2d(o // 2, o // 2, 3, 1, 1), nn.Conv2d(o // 2, o, 1)])
        self.skip = nn.Conv2d(i, o, 1) if i != o else None

    def forward(self, x):
        y = x
        for bn, conv in zip(self.bn, self.conv):
            y = conv(torch.relu(bn(y)))
        return y + (x if self.skip is None else self.skip(x))


class Hourglass(nn.Module):
    """Recursive: the inner branch is another hourglass until depth one."""

    def __init__(self, depth, ch, grow):
        super().__init__()
        self.up1 = Residual(ch, ch)
        self.low1 = Residual(ch, ch + grow)
        self.low2 = Hourglass(depth - 1, ch + grow, grow) if depth > 1 else Residual(ch + grow, ch + grow)
        self.low3 = Residual(ch + grow, ch)

    def forward(self, x):
        low = self.low3(self.low2(self.low1(F.max_pool2d(x, 2, 2, ceil_mode=True))))
        return self.up1(x) + F.interpolate(low, size=x.shape[2:], mode="nearest")


def soft_argmax(heat, beta):
    """Expected coordinates in [-1, 1] and the spread around them."""
    n, k, h, w = heat.shape
    p = torch.softmax(beta * heat.flatten(2), dim=-1).view(n, k, h, w)
    xs = torch.linspace(-1, 1, w, device=heat.device, dtype=heat.dtype)
    ys = torch.linspace(-1, 1, h, device=heat.device, dtype=heat.dtype)
    x, y = (p.sum(2) * xs).sum(-1), (p.sum(3) * ys).sum(-1)
    var = (p.sum(2) * (xs - x.unsqueeze(-1)) ** 2).sum(-1) + (p.sum(3) * (ys - y.unsqueeze(-1)) ** 2).sum(-1)
    return torch.stack((x, y), dim=-1), var


class Model(nn.Module):
    """Stacked hourglass pose network: supervised heatmaps from rendered Gaussians, soft-argmax, flip test."""

    def __init__(self, stacks, ch, joints, depth, flip_pairs):
        super().__init__()
        self.pre = nn.Sequential(nn.Conv2d(3, ch // 2, 7, 2, 3), nn.BatchNorm2d(ch // 2), nn.ReLU(), Residual(ch // 2, ch))
        self.hg = nn.ModuleList(Hourglass(depth, ch, 4) for _ in range(stacks))
        self.feat = nn.ModuleList(nn.Sequential(Residual(ch, ch), nn.Conv2d(ch, ch, 1), nn.BatchNorm2d(ch), nn.ReLU()) for _ in range(stacks))
        self.out = nn.ModuleList(nn.Conv2d(ch, joints, 1) for _ in range(stacks))
        self.merge_f = nn.ModuleList(nn.Conv2d(ch, ch, 1) for _ in range(stacks - 1))
        self.merge_p = nn.ModuleList(nn.Conv2d(joints, ch, 1) for _ in range(stacks - 1))
        self.beta = nn.Parameter(torch.tensor(5.0))
        perm = list(range(joints))
        for a, b in flip_pairs:
            perm[a], perm[b] = perm[b], perm[a]
        self.register_buffer("perm", torch.tensor(perm), persistent=False)

    @torch.no_grad()
    def render(self, kp, h, w, sigma=0.15):
        xs = torch.linspace(-1, 1, w, device=kp.device)
        ys = torch.linspace(-1, 1, h, device=kp.device)
        dx = (xs.view(1, 1, 1, w) - kp[..., 0, None, None]) ** 2
        dy = (ys.view(1, 1, h, 1) - kp[..., 1, None, None]) ** 2
        return torch.exp(-(dx + dy) / (2 * sigma ** 2))

    def forward(self, img, kp, visible):
        x = self.pre(img)
        heats = []
        for i, (hg, feat, out) in enumerate(zip(self.hg, self.feat, self.out)):
            f = feat(hg(x))
            heats.append(out(f))
            if i < len(self.merge_f):
                x = x + self.merge_f[i](f) + self.merge_p[i](heats[-1])
        target = self.render(kp, *heats[0].shape[-2:])
        loss = 0
        for heat in heats:
            loss = loss + (((heat - target) ** 2).mean((-1, -2)) * visible).sum() / visible.sum().clamp(min=1)
        flipped = heats[-1].flip(-1)[:, self.perm]
        coord, var = soft_argmax((heats[-1] + flipped) / 2, self.beta)
        err = (F.smooth_l1_loss(coord, kp, reduction="none", beta=0.1).sum(-1) * visible).mean()
        return loss + 0.1 * err, coord, var


def get_inputs():
    vis = (torch.rand(2, 9) > 0.2).float()
    return [torch.randn(2, 3, 54, 42), torch.rand(2, 9, 2) * 1.6 - 0.8, vis]


def get_init_inputs():
    return [2, 28, 9, 3, [(1, 2), (3, 4), (5, 6)]]
