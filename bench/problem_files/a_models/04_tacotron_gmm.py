import torch
import torch.nn as nn
import torch.nn.functional as F


class BatchNormConv(nn.Module):
    def __init__(self, c_in, c_out, k, relu=True):
        super().__init__()
        self.conv = nn.Conv1d(c_in, c_out, k, padding=k // 2, bias=False)
        self.bn, self.relu = nn.BatchNorm1d(c_out), relu

    def forward(self, x):
        x = self.conv(x)
        return self.bn(F.relu(x) if self.relu else x)


class CBHG(nn.Module):
    """Conv bank (even and odd kernels), max pool, projections, highways and a bidirectional GRU."""

    def __init__(self, K, c_in, ch, proj):
        super().__init__()
        self.bank = nn.ModuleList([BatchNormConv(c_in, ch, k) for k in range(1, K + 1)])
        self.pool = nn.MaxPool1d(2, stride=1, padding=1)
        self.p1, self.p2 = BatchNormConv(K * ch, proj, 3), BatchNormConv(proj, c_in, 3, relu=False)
        self.pre = nn.Linear(c_in, ch, bias=False)
        self.high = nn.ModuleList([nn.ModuleList([nn.Linear(ch, ch), nn.Linear(ch, ch)]) for _ in range(4)])
        for h, g in self.high:
            nn.init.zeros_(h.bias)
            nn.init.constant_(g.bias, -1.0)
        self.rnn = nn.GRU(ch, ch, batch_first=True, bidirectional=True)

    def forward(self, x):
        res, t = x, x.size(-1)
        x = torch.cat([c(x)[:, :, :t] for c in self.bank], dim=1)
        x = self.p2(self.p1(self.pool(x)[:, :, :t])) + res
        x = self.pre(x.transpose(1, 2))
        for h, g in self.high:
            gate = torch.sigmoid(g(x))
            x = gate * F.relu(h(x)) + (1.0 - gate) * x
        return self.rnn(x)[0]


class GMMAttention(nn.Module):
    def __init__(self, d_q, n_mix):
        super().__init__()
        self.K = n_mix
        self.mlp = nn.Sequential(nn.Linear(d_q, d_q // 2), nn.Tanh(), nn.Linear(d_q // 2, 3 * n_mix))
        with torch.no_grad():
            self.mlp[-1].bias.view(3, -1).copy_(torch.tensor([[0.0], [0.5], [1.0]]))

    def forward(self, query, memory, mu_prev, pos, pad):
        w, delta, sigma = self.mlp(query).unsqueeze(-1).split(self.K, dim=1)
        w, sigma = torch.softmax(w, dim=1), F.softplus(sigma) + 1e-2
        mu = mu_prev + F.softplus(delta)
        z = (pos - mu) / sigma
        phi = (w / (sigma * 2.5066) * torch.exp(-0.5 * z * z)).sum(1).masked_fill(pad, 0.0)
        phi = phi / (phi.sum(1, keepdim=True) + 1e-2)
        return torch.bmm(phi.unsqueeze(1), memory).squeeze(1), phi, mu


class Model(nn.Module):
    """Tacotron with GMM (v2) monotonic attention, reduction factor, stop tokens and a CBHG post-net."""

    def __init__(self, n_vocab, d, n_mel, r, n_mix):
        super().__init__()
        self.d, self.n_mel, self.r = d, n_mel, r
        self.emb = nn.Embedding(n_vocab, d)
        self.pre_t = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d // 2), nn.ReLU())
        self.enc = CBHG(8, d // 2, d // 2, d // 2)
        self.pre_m = nn.Sequential(nn.Linear(n_mel, d), nn.ReLU(), nn.Linear(d, d // 2), nn.ReLU())
        self.attn_rnn, self.attn = nn.GRUCell(d + d // 2, d), GMMAttention(d, n_mix)
        self.proj = nn.Linear(2 * d, d)
        self.rnns = nn.ModuleList([nn.GRUCell(d, d) for _ in range(2)])
        self.mel, self.stop = nn.Linear(d, n_mel * r), nn.Linear(2 * d, 1)
        self.post = CBHG(5, n_mel, d // 2, d // 2)
        self.lin = nn.Linear(d, 2 * n_mel + 1)

    def forward(self, text, lengths, mel, linear):
        b, t = text.shape
        memory = self.enc(self.pre_t(self.emb(text)).transpose(1, 2))
        pad = torch.arange(t, device=text.device)[None] >= lengths[:, None]
        pos = torch.arange(t, device=text.device, dtype=memory.dtype).view(1, 1, -1)
        steps = mel.shape[1] // self.r
        frames = mel[:, self.r - 1::self.r]
        go = torch.cat([torch.zeros_like(frames[:, :1]), frames[:, :-1]], dim=1)
        pre = self.pre_m(go)
        ah = memory.new_zeros(b, self.d)
        hs = [memory.new_zeros(b, self.d) for _ in self.rnns]
        ctx, mu = memory.new_zeros(b, self.d), memory.new_zeros(b, self.attn.K, 1)
        outs, aligns, stops = [], [], []
        for i in range(steps):
            ah = self.attn_rnn(torch.cat([pre[:, i], ctx], dim=-1), ah)
            ctx, phi, mu = self.attn(ah, memory, mu, pos, pad)
            x = self.proj(torch.cat([ah, ctx], dim=-1))
            for j, cell in enumerate(self.rnns):
                hs[j] = cell(x, hs[j])
                x = hs[j] + x
            outs.append(self.mel(x))
            stops.append(self.stop(torch.cat([x, ctx], dim=-1)))
            aligns.append(phi)
        out = torch.stack(outs, dim=1).view(b, steps * self.r, self.n_mel)
        spec = self.lin(self.post(out.transpose(1, 2)))
        stop = torch.cat(stops, dim=1)
        goal = (torch.arange(steps, device=text.device) >= steps - 2).to(stop.dtype).expand_as(stop)
        diff = (spec - linear).abs()
        n_pri = int(3000 / 10000 * diff.shape[-1])
        loss = (out - mel).abs().mean() + 0.5 * diff.mean() + 0.5 * diff[:, :, :n_pri].mean()
        loss = loss + F.binary_cross_entropy_with_logits(stop, goal)
        return loss, out, spec, torch.stack(aligns, dim=1)


def get_inputs():
    return [torch.randint(0, 70, (5, 47)), torch.randint(20, 48, (5,)), torch.rand(5, 65, 80),
            torch.rand(5, 65, 161)]


def get_init_inputs():
    return [70, 256, 80, 5, 5]
