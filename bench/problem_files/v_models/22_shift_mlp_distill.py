import torch
import torch.nn as nn
import torch.nn.functional as F


def spatial_shift(x, order):
    """S2-MLP: quarters of the channels move one step along each direction (edges keep their value)."""
    c = x.size(-1) // 4
    parts = list(torch.split(x, [c, c, c, x.size(-1) - 3 * c], dim=-1))
    for i, (axis, step) in enumerate(order):
        p = parts[i]
        n = p.size(axis)
        idx = (torch.arange(n, device=x.device) - step).clamp(0, n - 1)
        parts[i] = p.index_select(axis, idx)
    return torch.cat(parts, dim=-1)


class SplitAttention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.d = d
        self.mlp1, self.mlp2 = nn.Linear(d, d, bias=False), nn.Linear(d, 3 * d, bias=False)

    def forward(self, xs):
        b, h, w, c = xs[0].shape
        stack = torch.stack([x.reshape(b, h * w, c) for x in xs], 1)
        a = stack.sum((1, 2))
        hat = self.mlp2(F.gelu(self.mlp1(a / (h * w)))).reshape(b, 3, c)
        return torch.einsum("bkc,bknc->bnc", hat.softmax(1), stack).reshape(b, h, w, c)


class S2Block(nn.Module):
    def __init__(self, d, ratio):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.expand, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.attn = SplitAttention(d)
        self.mlp = nn.Sequential(nn.Linear(d, int(d * ratio)), nn.GELU(), nn.Linear(int(d * ratio), d))
        self.g1, self.g2 = nn.Parameter(0.3 * torch.ones(d)), nn.Parameter(0.3 * torch.ones(d))

    def forward(self, x):
        a, b, c = self.expand(self.norm1(x)).chunk(3, dim=-1)
        a = spatial_shift(a, [(1, 1), (1, -1), (2, 1), (2, -1)])
        b = spatial_shift(b, [(2, 1), (2, -1), (1, 1), (1, -1)])
        x = x + self.g1 * self.proj(self.attn([a, b, c]))
        return x + self.g2 * self.mlp(self.norm2(x))


class MixerBlock(nn.Module):
    def __init__(self, tokens, d, tok_hidden, ch_hidden):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.tok = nn.Sequential(nn.Linear(tokens, tok_hidden), nn.GELU(), nn.Linear(tok_hidden, tokens))
        self.ch = nn.Sequential(nn.Linear(d, ch_hidden), nn.GELU(), nn.Linear(ch_hidden, d))

    def forward(self, x):
        x = x + self.tok(self.ln1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.ch(self.ln2(x))


class Model(nn.Module):
    """A shift-MLP student learns from a frozen token-mixing teacher: soft targets, a hint between the token
    grids of different sizes, decoupled target and non-target distillation."""

    def __init__(self, d_student, d_teacher, depth, classes, tau):
        super().__init__()
        self.patch_s = nn.Conv2d(3, d_student, 4, stride=4)
        self.blocks = nn.Sequential(*[S2Block(d_student, 2.5) for _ in range(depth)])
        self.head = nn.Linear(d_student, classes)
        self.hint = nn.Conv2d(d_student, d_teacher, 1)
        self.patch_t = nn.Conv2d(3, d_teacher, 6, stride=6)
        self.teacher = nn.Sequential(MixerBlock(48, d_teacher, 36, 2 * d_teacher), MixerBlock(48, d_teacher, 36, 2 * d_teacher))
        self.head_t = nn.Linear(d_teacher, classes)
        for m in (self.patch_t, self.teacher, self.head_t):
            m.requires_grad_(False)
        self.tau = tau

    def forward(self, img, label):
        with torch.no_grad():
            t = self.teacher(self.patch_t(img).flatten(2).transpose(1, 2))
            t_logits = self.head_t(t.mean(1)) * 4
            t_map = t.transpose(1, 2).unflatten(2, (img.size(2) // 6, img.size(3) // 6))
        s = self.blocks(self.patch_s(img).permute(0, 2, 3, 1))
        logits = self.head(s.mean(dim=(1, 2)))
        s_map = F.adaptive_avg_pool2d(self.hint(s.permute(0, 3, 1, 2)), t_map.shape[-2:])
        hint = (1 - F.cosine_similarity(s_map.flatten(2), t_map.flatten(2), dim=1)).mean()
        gt = F.one_hot(label, logits.size(1)).bool()
        ps, pt = (logits / self.tau).softmax(1), (t_logits / self.tau).softmax(1)
        bs = torch.stack([ps[gt], (ps * ~gt).sum(1)], 1)
        bt = torch.stack([pt[gt], (pt * ~gt).sum(1)], 1)
        tckd = F.kl_div(bs.log(), bt, reduction="batchmean")
        nckd = F.kl_div((logits / self.tau - 1000.0 * gt).log_softmax(1), (t_logits / self.tau - 1000.0 * gt).log_softmax(1),
                        log_target=True, reduction="batchmean")
        loss = F.cross_entropy(logits, label) + self.tau ** 2 * (tckd + 4 * nckd) + hint
        return loss, logits


def get_inputs():
    return [torch.randn(3, 3, 36, 48), torch.randint(0, 10, (3,))]


def get_init_inputs():
    return [50, 58, 3, 10, 3.0]
