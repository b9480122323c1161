import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ChannelNorm(nn.Module):
    def __init__(self, c, eps=1e-5):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(1, c, 1)), nn.Parameter(torch.zeros(1, c, 1))
        self.eps = eps

    def forward(self, x):
        mean, var = x.mean(dim=1, keepdim=True), x.var(dim=1, keepdim=True)
        return (x - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias


class Encoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        spec = [(10, 5, 3), (8, 4, 2), (4, 2, 1), (4, 2, 1), (4, 2, 1)]
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for i, (k, s, p) in enumerate(spec):
            self.convs.append(nn.Conv1d(1 if i == 0 else c, c, k, stride=s, padding=p))
            self.norms.append(ChannelNorm(c))

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms):
            x = F.relu(norm(conv(x)))
        return x


class HandGRU(nn.Module):
    def __init__(self, d_in, d):
        super().__init__()
        self.d = d
        self.wx, self.wh = nn.Linear(d_in, 3 * d), nn.Parameter(torch.empty(d, 3 * d))
        self.ln = nn.LayerNorm(3 * d)
        for i in range(3):
            nn.init.orthogonal_(self.wh.data[:, i * d:(i + 1) * d])

    def forward(self, x):
        gx = self.wx(x)
        h = x.new_zeros(x.shape[0], self.d)
        outs = []
        for t in range(x.shape[1]):
            gh = self.ln(h @ self.wh)
            rx, zx, nx = gx[:, t].chunk(3, dim=1)
            rh, zh, nh = gh.chunk(3, dim=1)
            z = torch.sigmoid(zx + zh)
            n = torch.tanh(nx + torch.sigmoid(rx + rh) * nh)
            h = torch.lerp(n, h, z)
            outs.append(h)
        return torch.stack(outs, dim=1)


class StepPredictor(nn.Module):
    def __init__(self, d, d_out, heads, max_len):
        super().__init__()
        self.h, self.dk = heads, d // heads
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.rel = nn.Parameter(torch.randn(heads, max_len, self.dk) / math.sqrt(self.dk))
        self.norm, self.out = nn.LayerNorm(d), nn.Linear(d, d_out, bias=False)

    def forward(self, c, causal):
        b, t, d = c.shape
        q, k, v = self.qkv(c).view(b, t, 3, self.h, self.dk).permute(2, 0, 3, 1, 4)
        r = F.pad(q @ self.rel[:, -t:].transpose(1, 2), (1, 0)).view(b, self.h, t + 1, t)[:, :, 1:]
        a = (q @ k.transpose(-1, -2) + r) / math.sqrt(self.dk)
        a = a.masked_fill(~causal, float("-inf")).softmax(dim=-1)
        y = (a @ v).transpose(1, 2).reshape(b, t, d)
        return self.out(self.norm(self.o(y) + c))


class Model(nn.Module):
    """Contrastive predictive coding on raw audio: hand GRU, one attention predictor per step, InfoNCE."""

    def __init__(self, c, d, n_pred, heads, max_len, n_speakers):
        super().__init__()
        self.n_pred = n_pred
        self.enc, self.ar = Encoder(c), HandGRU(c, d)
        self.pred = nn.ModuleList([StepPredictor(d, c, heads, max_len) for _ in range(n_pred)])
        self.spk = nn.Linear(d, n_speakers)
        self.log_tau = nn.Parameter(torch.zeros(n_pred))

    def forward(self, wav, neg_b, neg_t, speaker):
        z = self.enc(wav).transpose(1, 2)
        c = self.ar(z)
        b, t, d = z.shape
        w = t - self.n_pred
        ctx = c[:, :w]
        causal = torch.ones(w, w, dtype=torch.bool, device=z.device).tril_()
        n_neg = neg_b.shape[0]
        shift = torch.arange(w, device=z.device).view(1, 1, w)
        negs = z[neg_b.view(n_neg, b, 1).expand(-1, -1, w), (neg_t + shift + 1) % t]
        losses, accs = [], []
        for k, p in enumerate(self.pred):
            y = p(ctx, causal)
            pos = (y * z[:, k + 1:k + 1 + w]).mean(dim=2, keepdim=True)
            neg = torch.einsum("btd,nbtd->btn", y, negs) / d
            logits = torch.cat([pos, neg], dim=2) * torch.exp(self.log_tau[k])
            losses.append(-F.log_softmax(logits, dim=2)[..., 0].mean())
            accs.append(torch.sigmoid(4 * (pos - neg)).mean())
        loss = torch.stack(losses)
        probe = F.cross_entropy(self.spk(c.mean(dim=1)), speaker)
        return loss.sum() + 0.1 * probe, loss, torch.stack(accs), c


def get_inputs():
    return [torch.randn(5, 1, 6560), torch.randint(0, 5, (32, 5)), torch.randint(0, 41, (32, 5, 1)),
            torch.randint(0, 31, (5,))]


def get_init_inputs():
    return [192, 192, 6, 4, 64, 31]
