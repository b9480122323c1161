import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Windowed features of a panel of series. Written by someone who loves strides: nearly every
    write goes through a view of a view of the buffer."""

    def __init__(self, channels=24, win=8, hop=4):
        super().__init__()
        self.win, self.hop = win, hop
        self.w = nn.Parameter(torch.randn(channels, win) * 0.3)
        self.mix = nn.Parameter(torch.eye(channels) + 0.02 * torch.randn(channels, channels))
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("ring", torch.zeros(channels, 3 * win))
        self.register_buffer("ptr", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        B, C, T = x.shape
        win, hop = self.win, self.hop
        buf = x.new_zeros(B, C, T + win)
        buf[:, :, win // 2: win // 2 + T] = x
        # reflect the borders by hand through flipped views
        buf[:, :, : win // 2] = x[:, :, 1: win // 2 + 1].flip(-1)
        buf.narrow(2, win // 2 + T, win // 2).copy_(x[:, :, -win // 2 - 1: -1].flip(2))
        # even samples of odd channels are scaled in place
        v = buf[:, 1::2]
        v = v.transpose(1, 2)
        v[:, ::2].mul_(self.scale)
        v[:, 1::2, 0] += 0.25
        buf.view(-1)[::97] = 0.0
        n = (T + win - win) // hop + 1
        # overlapping frames
        base = buf.contiguous()
        fr = base.as_strided((B, C, n, win), (C * (T + win), T + win, hop, 1))
        fr2 = buf.unfold(-1, win, hop)[:, :, :n]
        same = (fr - fr2).abs().sum()
        feat = torch.einsum("bcnw,cw->bcn", fr, self.w)
        feat = torch.matmul(self.mix, feat)
        # overlap add back by index arithmetic on an expanded index
        idx = torch.arange(n, device=x.device)[:, None] * hop + torch.arange(win, device=x.device)[None]
        back = x.new_zeros(B, C, T + win)
        contrib = feat.unsqueeze(-1) * self.w[None, :, None, :]
        back.index_add_(2, idx.reshape(-1), contrib.flatten(2))
        # diagonal tricks on a Gram matrix
        G = torch.bmm(feat, feat.transpose(1, 2))
        G.diagonal(dim1=1, dim2=2).fill_(1.0)
        G.diagonal(1, 1, 2).mul_(0.5)
        up = G.permute(2, 1, 0)[..., 0].triu(1)
        G[:, ::2, ::2] *= -1
        # swap halves through chunk views; the right side must be read before it is written
        h = back.clone()
        cut = (T + win) // 2
        a, b = h[:, :, :cut], h.narrow(2, cut, T + win - cut)
        tmp = a.clone()
        m = min(a.size(2), b.size(2))
        a[..., :m].copy_(b[..., :m])
        b[..., :m] = tmp[..., :m] * 0.5
        # reversed cumulative sum via double flip, then a skewed read
        rc = h.flip(-1).cumsum(-1).flip(-1)
        sk = F.pad(G, (0, 1)).flatten(1)[:, :-C].reshape(B, C, C)
        sk = sk.movedim(0, -1).swapaxes(0, 1).contiguous()
        # write a broken up column with a mask and a 0-dim view
        q = rc[:, :, ::3].clone()
        q[q > 2.0] = 2.0
        q[:, 0, 0] = q[:, -1, -1].tanh()
        q[torch.arange(B, device=x.device), torch.arange(B, device=x.device) % C] = -1.0
        q.select(1, 3).zero_().add_(q.select(1, 4).detach())
        if self.training:
            with torch.no_grad():
                third = self.ring.view(C, 3, win)
                third[:, :2] = third[:, 1:].clone()
                third[:, 2].copy_(x[0, :, -win:])
                self.ptr.add_(1).remainder_(3)
        e = feat.mean(0, keepdim=True).expand(3, -1, -1).reshape(-1, n)
        t2 = torch.t(e).unflatten(1, (3, C)).select(1, 2)
        return feat, h, G, up, sk, q, same, t2, self.ring.sum(1) + self.ptr


def get_inputs():
    return [torch.randn(12, 24, 400)]


def get_init_inputs():
    return [24, 8, 4]
