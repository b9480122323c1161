import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint


class Encoder(nn.Module):
    def __init__(self, cin, width, dout):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, width, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, groups=2)
        self.head = nn.Linear(width, dout)

    def forward(self, x):
        x = F.gelu(self.conv1(x))
        x = x + F.gelu(self.conv2(x))
        with torch.autocast("cpu", enabled=False):
            x = x.to(self.head.weight.dtype)
            pooled = x.flatten(2).pow(2).mean(-1).add(1e-4).sqrt()
        return self.head(pooled)


class Model(nn.Module):
    """A self-supervised step under bfloat16 autocast: a target network of averaged weights kept
    in buffers and updated in place, a ring of keys, centring statistics, stop-gradient
    targets, a checkpointed second view. State goes on from call to call."""

    def __init__(self, cin, width, dout, queue, momentum):
        super().__init__()
        self.net = Encoder(cin, width, dout)
        self.predict = nn.Sequential(nn.Linear(dout, 2 * dout), nn.ReLU(), nn.Linear(2 * dout, dout))
        self.momentum = momentum
        for name, p in self.net.named_parameters():
            self.register_buffer("avg_" + name.replace(".", "_"), p.detach().clone())
        self.register_buffer("queue", F.normalize(torch.randn(queue, dout), dim=1))
        self.register_buffer("age", torch.zeros(queue, dtype=torch.int32))
        self.register_buffer("centre", torch.zeros(dout))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def advance(self):
        for name, p in self.net.named_parameters():
            self.get_buffer("avg_" + name.replace(".", "_")).lerp_(p, 1 - self.momentum)

    @torch.no_grad()
    def push(self, keys):
        n, size = keys.shape[0], self.queue.shape[0]
        at = torch.remainder(self.calls * n + torch.arange(n), size)
        self.age += 1
        self.age.index_fill_(0, at, 0)
        self.queue.index_copy_(0, at, keys)
        self.centre.mul_(0.9).add_(keys.mean(0), alpha=0.1)
        self.calls += 1

    def forward(self, a, b):
        self.advance()
        averaged = {name: self.get_buffer("avg_" + name.replace(".", "_")) for name, _ in self.net.named_parameters()}
        with torch.autocast("cpu", dtype=torch.bfloat16):
            za = self.net(a)
            zb = checkpoint(self.net, b, use_reentrant=False)
            pa, pb = self.predict(za), self.predict(zb)
            with torch.no_grad():
                ta = functional_call(self.net, averaged, (a,))
                tb = functional_call(self.net, averaged, (b,))
        wide = self.queue.dtype
        ta, tb = F.normalize(ta.to(wide) - self.centre, dim=1), F.normalize(tb.to(wide) - self.centre, dim=1)
        pa, pb = F.normalize(pa.to(wide), dim=1), F.normalize(pb.to(wide), dim=1)
        byol = 4 - 2 * (pa * tb).sum(1) - 2 * (pb * ta).sum(1)

        stored = self.queue.detach().clone()
        positive = (pa * tb).sum(1, keepdim=True)
        logits = torch.cat([positive, pa @ stored.T], 1) / 0.2
        nce = F.cross_entropy(logits, torch.zeros(len(a), dtype=torch.int64), reduction="none")
        std = torch.sqrt(za.to(wide).var(0) + 1e-4)
        hinge = F.relu(1 - std).mean()
        weight = torch.sigmoid(nce.detach() - nce.detach().mean())
        self.push(tb)
        loss = (byol * weight).mean() + 0.1 * nce.mean() + 0.05 * hinge
        return loss, byol, nce, pa, za, stored, self.centre.clone(), self.age.clone()


def get_inputs():
    n = 14
    a = torch.randn(n, 3, 31, 29).to(memory_format=torch.channels_last)
    return [a, torch.flip(a, (3,)) + 0.2 * torch.randn(n, 3, 31, 29)]


def get_init_inputs():
    return [3, 24, 33, 101, 0.97]
