import torch
import torch.nn as nn
import torch.nn.functional as F


def group(x, idx):
    b, m, k = idx.shape
    return torch.gather(x, 1, idx.reshape(b, m * k, 1).expand(-1, -1, x.shape[-1])).view(b, m, k, -1)


class BN(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.bn = nn.BatchNorm1d(c)

    def forward(self, x):
        return self.bn(x.reshape(-1, x.shape[-1])).view_as(x)


class VectorAttention(nn.Module):
    def __init__(self, c, share):
        super().__init__()
        self.share = share
        self.q, self.k, self.v = nn.Linear(c, c), nn.Linear(c, c), nn.Linear(c, c)
        self.pos, g = nn.Sequential(nn.Linear(3, 3), BN(3), nn.ReLU(True), nn.Linear(3, c)), c // share
        self.w = nn.Sequential(BN(c), nn.ReLU(True), nn.Linear(c, g), BN(g), nn.ReLU(True), nn.Linear(g, g))

    def forward(self, p, x, idx):
        q, k, v = self.q(x), group(torch.cat([p, self.k(x)], -1), idx), group(self.v(x), idx)
        pe, w = self.pos(k[..., :3] - p.unsqueeze(2)), k[..., 3:] - q.unsqueeze(2)
        w += pe.view(*pe.shape[:3], 1, -1).sum(3)
        w = torch.softmax(self.w(w), dim=2).unsqueeze(3)
        return ((v + pe).unflatten(-1, (self.share, -1)) * w).sum(2).flatten(2)


class Block(nn.Module):
    def __init__(self, c, share):
        super().__init__()
        self.l1, self.l3 = nn.Linear(c, c, bias=False), nn.Linear(c, c, bias=False)
        self.b1, self.b2, self.b3, self.attn = BN(c), BN(c), BN(c), VectorAttention(c, share)
        nn.init.constant_(self.b3.bn.weight, 0.2)

    def forward(self, p, x, idx):
        y = F.relu(self.b2(self.attn(p, F.relu_(self.b1(self.l1(x))), idx)), inplace=True)
        y = self.b3(self.l3(y)).add_(x)
        return F.relu(y, inplace=True)


class TransitionDown(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.stride, self.bn = stride, BN(b)
        self.lin = nn.Linear(a if stride == 1 else a + 3, b, bias=False)

    def forward(self, p, x, idx):
        if self.stride == 1:
            return p, F.relu(self.bn(self.lin(x)))
        new_p, g = p[:, ::self.stride].contiguous(), group(torch.cat([p, x], dim=-1), idx)
        g[..., :3] -= new_p.unsqueeze(2)
        return new_p, F.relu(self.bn(self.lin(g))).permute(0, 1, 3, 2).amax(-1)


class TransitionUp(nn.Module):
    def __init__(self, c, c_low):
        super().__init__()
        self.l1 = nn.Sequential(nn.Linear(c if c_low else 2 * c, c), BN(c), nn.ReLU(inplace=True))
        self.l2 = nn.Sequential(nn.Linear(c_low or c, c), *[BN(c)] if c_low else [], nn.ReLU(inplace=True))

    def forward(self, p, x, idx=None, p2=None, x2=None):
        if idx is None:
            return self.l1(torch.cat((x, self.l2(x.mean(1, True)).repeat(1, x.shape[1], 1)), -1))
        w = 1.0 / (torch.sqrt((group(p2, idx) - p.unsqueeze(2)).pow(2).sum(-1) + 1e-8) + 1e-2)
        w = w / torch.sum(w, dim=2, keepdim=True)
        out, low = self.l1(x), group(self.l2(x2), idx)
        for i in range(idx.shape[2]):
            out = out + low[:, :, i] * w[:, :, i:i + 1]
        return out


class Model(nn.Module):
    """Point Transformer segmentation: grouped vector attention, given neighbour lists, CE plus Dice."""

    def __init__(self, c_in, planes, blocks, share, n_cls, n):
        super().__init__()
        strides, self.sizes = [1] + [4] * (len(planes) - 1), [n]
        for s in strides[1:]:
            self.sizes.append(-(-self.sizes[-1] // s))
        make, ml = lambda c, m: ml([Block(c, share) for _ in range(m)]), nn.ModuleList
        self.down = ml([TransitionDown(*a) for a in zip([c_in] + planes[:-1], planes, strides)])
        self.enc, self.dec = [ml([make(c, m) for c, m in zip(planes, n)]) for n in (blocks, [1] * 4)]
        self.up = ml([TransitionUp(c, d) for c, d in zip(planes, planes[1:] + [None])])
        self.cls = nn.Sequential(nn.Linear(planes[0], 64), BN(64), nn.ReLU(True), nn.Linear(64, n_cls))

    def forward(self, p, feat, nb, label):
        x, ps, xs = torch.cat([p, feat], dim=-1), [], []
        for i, (down, enc) in enumerate(zip(self.down, self.enc)):
            own = nb[:, :self.sizes[i]] % self.sizes[i]
            p, x = down(p, x, nb[:, :self.sizes[i]] % self.sizes[max(i - 1, 0)])
            for blk in enc:
                x = blk(p, x, own)
            ps, xs = ps + [p], xs + [x]
        x = self.dec[-1][0](p, self.up[-1](p, x), own)
        for i in range(len(ps) - 2, -1, -1):
            idx = nb[:, :self.sizes[i]]
            x = self.up[i](ps[i], xs[i], idx[..., :3] % self.sizes[i + 1], ps[i + 1], x)
            x = self.dec[i][0](ps[i], x, idx % self.sizes[i])
        logits = self.cls(x)
        prob = torch.softmax(logits, dim=-1)
        one = F.one_hot(label, logits.shape[-1]).to(prob.dtype)
        dice = 1 - (2 * (prob * one).sum((0, 1)) + 1) / ((prob + one).sum((0, 1)) + 1)
        return F.cross_entropy(logits.flatten(0, 1), label.flatten()) + dice.mean(), logits


def get_inputs():
    p, f = torch.rand(3, 509, 3), torch.randn(3, 509, 6)
    return [p, f, torch.randint(0, 509, (3, 509, 12)), torch.randint(0, 13, (3, 509))]


def get_init_inputs():
    return [9, [32, 64, 128, 256], [1, 2, 2, 2], 8, 13, 509]
