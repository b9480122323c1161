import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, c, d):
        super().__init__()
        self.conv1 = nn.Conv2d(3, c, 3, 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(c)
        self.conv2 = nn.Conv2d(c, 2 * c, 3, 2, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * c, momentum=0.3)
        self.fc = nn.Linear(2 * c, d)
        self.bn3 = nn.BatchNorm1d(d, affine=False)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = F.relu_(self.bn2(self.conv2(x)))
        x = x.mean([2, 3])
        return self.bn3(self.fc(x))


class Model(nn.Module):
    """BYOL / MoCo / SwAV / VICReg / Barlow all at once. EMA teacher inside forward, a queue
    written with modular pointers and a centre for the DINO loss."""

    def __init__(self, c=12, d=32, queue=96):
        super().__init__()
        self.student = Encoder(c, d)
        self.teacher = copy.deepcopy(self.student)
        for p in self.teacher.parameters():
            p.requires_grad_(False)
        self.pred = nn.Sequential(nn.Linear(d, 64), nn.BatchNorm1d(64), nn.ReLU(inplace=True), nn.Linear(64, d))
        self.proto = nn.Linear(d, 20, bias=False)
        self.register_buffer("queue", F.normalize(torch.randn(queue, d), dim=1))
        self.register_buffer("qptr", torch.zeros(1, dtype=torch.long))
        self.register_buffer("center", torch.zeros(1, 20))
        self.register_buffer("mom", torch.tensor(0.95))

    @torch.no_grad()
    def update_teacher(self):
        for ps, pt in zip(self.student.parameters(), self.teacher.parameters()):
            pt.data.mul_(self.mom).add_(ps.data * (1 - self.mom))

    @torch.no_grad()
    def enqueue(self, k):
        n = self.queue.shape[0]
        slots = (self.qptr + torch.arange(k.shape[0], device=k.device)) % n
        self.queue.index_copy_(0, slots, k)
        self.qptr[0] = (self.qptr[0] + k.shape[0]) % n

    @torch.no_grad()
    def sinkhorn(self, s, iters=3):
        Q = torch.exp(s / 0.25).t()
        Q /= Q.sum()
        K, B = Q.shape
        for _ in range(iters):
            Q /= Q.sum(dim=1, keepdim=True)
            Q /= K
            Q /= torch.sum(Q, dim=0, keepdim=True)
            Q /= B
        return (Q * B).t()

    def forward(self, a, b):
        if self.training:
            self.update_teacher()
        za, zb = self.student(a), self.student(b)
        with torch.no_grad():
            ta, tb = self.teacher(a), self.teacher(b)
        n, d = za.shape
        # byol
        byol = 2 - F.cosine_similarity(self.pred(za), tb).mean() - F.cosine_similarity(self.pred(zb), ta).mean()
        # moco
        q, k = F.normalize(za, dim=1), F.normalize(tb, dim=1)
        pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        neg = torch.einsum("nc,kc->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([pos, neg], dim=1) / 0.2
        moco = F.cross_entropy(logits, torch.zeros(n, dtype=torch.long, device=a.device))
        # simclr with the diagonal removed
        z = F.normalize(torch.cat([za, zb]), dim=1)
        sim = z @ z.T / 0.5
        sim.fill_diagonal_(-1e9)
        nt = F.cross_entropy(sim, (torch.arange(2 * n, device=a.device) + n) % (2 * n))
        # swav
        with torch.no_grad():
            w = F.normalize(self.proto.weight.data, dim=1)
        pa, pb = F.linear(q, w) + self.proto(q) * 0.5, self.proto(F.normalize(zb, dim=1))
        swav = -(self.sinkhorn(pa.detach()) * F.log_softmax(pb / 0.1, 1)).sum(1).mean()
        # dino
        tp = F.softmax((self.proto(k).detach() - self.center) / 0.1, dim=-1)
        dino = torch.sum(-tp * F.log_softmax(pa / 0.2, dim=-1), dim=-1).mean()
        # vicreg + barlow
        std = torch.sqrt(za.var(0) + 1e-4)
        var = F.relu(1 - std).mean()
        zc = za - za.mean(0)
        cov = (zc.T @ zc) / (n - 1)
        offd = cov.flatten()[:-1].view(d - 1, d + 1)[:, 1:].flatten()
        vic = var + offd.pow_(2).sum() / d + F.mse_loss(za, zb)
        cc = za.T @ zb / n
        barlow = torch.diagonal(cc).add(-1).pow(2).sum() + 5e-3 * (cc - torch.diag(cc.diag())).pow(2).sum()
        if self.training:
            self.enqueue(k)
            self.center.mul_(0.9).add_(self.proto(k).detach().mean(0, keepdim=True), alpha=0.1)
        acc = (sim.argmax(1) == (torch.arange(2 * n, device=a.device) + n) % (2 * n)).float().mean()
        parts = torch.stack([byol, moco, nt, swav, dino, vic, barlow])
        return parts.sum(), parts.detach(), acc, self.qptr.clone(), za


def get_inputs():
    return [torch.randn(24, 3, 16, 16), torch.randn(24, 3, 16, 16)]


def get_init_inputs():
    return [12, 32, 96]
