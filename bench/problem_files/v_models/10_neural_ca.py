import torch
import torch.nn as nn
import torch.nn.functional as F


class CARule(nn.Module):
    def __init__(self, channels, hidden, angle=0.0):
        super().__init__()
        ident = torch.tensor([[0.0, 0, 0], [0, 1, 0], [0, 0, 0]])
        dx = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8.0
        lap = torch.tensor([[1.0, 2, 1], [2, -12, 2], [1, 2, 1]]) / 16.0
        s, c = torch.sin(torch.tensor(angle)), torch.cos(torch.tensor(angle))
        stack = torch.stack([ident, c * dx - s * dx.t(), s * dx + c * dx.t(), lap])
        self.register_buffer("filters", stack[:, None].repeat(channels, 1, 1, 1))
        self.channels = channels
        self.w1 = nn.Conv2d(channels * 4, hidden, 1)
        self.w2 = nn.Conv2d(hidden, channels, 1, bias=False)
        nn.init.normal_(self.w2.weight, std=0.05)

    def perceive(self, x):
        return F.conv2d(F.pad(x, [1, 1, 1, 1], "circular"), self.filters, groups=self.channels)

    @staticmethod
    def alive(x):
        return F.max_pool2d(F.pad(x[:, 3:4], (1, 1, 1, 1), mode="circular"), 3, stride=1) > 0.1

    def forward(self, x, fire):
        pre = self.alive(x)
        dx = self.w2(torch.relu(self.w1(self.perceive(x))))
        x = x + dx * fire
        return x * (pre & self.alive(x)).to(x.dtype)


class Model(nn.Module):
    """Growing neural cellular automaton: masked asynchronous updates (the mask is given), damage half way,
    a loss on the premultiplied RGBA and an overflow penalty; a buffer counts the steps taken."""

    def __init__(self, channels, hidden, steps):
        super().__init__()
        self.rule = CARule(channels, hidden, angle=0.3)
        self.steps = steps
        self.register_buffer("taken", torch.zeros((), dtype=torch.long))

    def forward(self, seed, fire, target, damage):
        x = seed
        frames = []
        for i in range(self.steps):
            x = self.rule(x, (fire[:, i:i + 1] < 0.5).float())
            if i == self.steps // 2:
                x = x * damage.unsqueeze(1)
            frames.append(x[:, :4])
        self.taken += self.steps
        rgb, a = x[:, :3], x[:, 3:4].clamp(0.0, 1.0)
        white = 1.0 - a + rgb
        loss = ((x[:, :4] - target) ** 2).mean(dim=(-2, -1, -3))
        overflow = (x - x.clamp(-2.0, 2.0)).abs().sum(dim=1).mean()
        return white, loss.mean() + overflow, torch.stack(frames, 1).mean(dim=(2, 3, 4))


def get_inputs():
    n, c, h, w, steps = 2, 13, 29, 31, 6
    seed = torch.zeros(n, c, h, w)
    seed[:, 3:, 8:22, 9:20] = torch.rand(n, c - 3, 14, 11)
    damage = torch.ones(n, h, w)
    damage[:, :12, :14] = 0
    return [seed, torch.rand(n, steps, h, w), torch.rand(n, 4, h, w), damage]


def get_init_inputs():
    return [13, 56, 6]
