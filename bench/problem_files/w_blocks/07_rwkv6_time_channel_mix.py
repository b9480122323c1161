import torch, torch.nn as nn, torch.nn.functional as F


def wkv6_chunked(r, k, v, w, u, chunk):
    """
    r, k, w: B H T K   v: B H T V   u: H K     w is the log decay (negative)
      y_t = r_t (S_{t-1} + u * k_t^T v_t),   S_t = exp(w_t) * S_{t-1} + k_t^T v_t
    Pairwise decays inside a chunk are formed explicitly so that nothing overflows.
    """
    B, H, T, K = r.shape
    V, N = v.shape[-1], T // chunk
    r, k, w = (t.view(B, H, N, chunk, K) for t in (r, k, w))
    v = v.view(B, H, N, chunk, V)
    cum = w.cumsum(-2)
    prev = cum - w
    total = cum[..., -1:, :]

    diff = prev.unsqueeze(-2) - cum.unsqueeze(-3)                     # B H N t s K
    strict = torch.ones(chunk, chunk, device=r.device).tril(-1).bool()
    diff = diff.masked_fill(~strict[:, :, None], float("-inf"))
    att = (r.unsqueeze(-2) * k.unsqueeze(-3) * diff.exp()).sum(-1)    # B H N t s
    bonus = (r * u[None, :, None, None, :] * k).sum(-1)
    att = att + torch.diag_embed(bonus)
    y = att @ v

    kv = (k * (total - cum).exp()).transpose(-1, -2) @ v              # B H N K V
    decay = total.squeeze(-2).exp().unsqueeze(-1)                     # B H N K 1
    state = r.new_zeros(B, H, K, V)
    states = []
    for i in range(N):
        states.append(state)
        state = decay[:, :, i] * state + kv[:, :, i]
    y = y + (r * prev.exp()) @ torch.stack(states, dim=2)
    return y.reshape(B, H, T, V), state


class TimeMix(nn.Module):
    def __init__(self, C, head_size, lora_mix=32, lora_decay=64):
        super().__init__()
        self.n_head, self.hs = C // head_size, head_size
        self.time_maa_x = nn.Parameter(torch.rand(1, 1, C))
        self.time_maa = nn.Parameter(torch.rand(5, 1, 1, C))
        self.maa_w1 = nn.Parameter(torch.randn(C, lora_mix * 5) * 1e-2)
        self.maa_w2 = nn.Parameter(torch.randn(5, lora_mix, C) * 1e-2)
        self.time_decay = nn.Parameter(torch.linspace(-6, -1, C).view(1, 1, C))
        self.decay_w1 = nn.Parameter(torch.randn(C, lora_decay) * 1e-2)
        self.decay_w2 = nn.Parameter(torch.randn(lora_decay, C) * 1e-2)
        self.time_faaaa = nn.Parameter(torch.rand(self.n_head, head_size))
        self.shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.receptance = nn.Linear(C, C, bias=False)
        self.key = nn.Linear(C, C, bias=False)
        self.value = nn.Linear(C, C, bias=False)
        self.gate = nn.Linear(C, C, bias=False)
        self.output = nn.Linear(C, C, bias=False)
        self.ln_x = nn.GroupNorm(self.n_head, C, eps=64e-5)

    def forward(self, x):
        B, T, C = x.size()
        xx = self.shift(x) - x
        xxx = x + xx * self.time_maa_x
        xxx = torch.tanh(xxx @ self.maa_w1).view(B * T, 5, -1).transpose(0, 1)
        mix = torch.bmm(xxx, self.maa_w2).view(5, B, T, C) + self.time_maa
        xw, xk, xv, xr, xg = (x + xx * mix).unbind(0)

        heads = lambda t: t.view(B, T, self.n_head, self.hs).transpose(1, 2).float()
        r, k, v = heads(self.receptance(xr)), heads(self.key(xk)), heads(self.value(xv))
        g = F.silu(self.gate(xg))
        ww = self.time_decay + torch.tanh(xw @ self.decay_w1) @ self.decay_w2
        w = -torch.exp(heads(ww))
        y, state = wkv6_chunked(r, k, v, w.contiguous(), self.time_faaaa.float(), 16)
        y = y.transpose(1, 2).reshape(B * T, C).to(x.dtype)
        return self.output(self.ln_x(y).view(B, T, C) * g), state


class ChannelMix(nn.Module):
    def __init__(self, C, hidden):
        super().__init__()
        self.shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.maa_k, self.maa_r = nn.Parameter(torch.rand(1, 1, C)), nn.Parameter(torch.rand(1, 1, C))
        self.key = nn.Linear(C, hidden, bias=False)
        self.receptance = nn.Linear(C, C, bias=False)
        self.value = nn.Linear(hidden, C, bias=False)

    def forward(self, x):
        xx = self.shift(x) - x
        k = torch.relu(self.key(x + xx * self.maa_k)) ** 2
        return torch.sigmoid(self.receptance(x + xx * self.maa_r)) * self.value(k)


class Model(nn.Module):
    def __init__(self, C, head_size, hidden):
        super().__init__()
        self.ln0, self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C), nn.LayerNorm(C)
        self.att = TimeMix(C, head_size)
        self.ffn = ChannelMix(C, hidden)

    def forward(self, x):
        x = self.ln0(x)
        a, state = self.att(self.ln1(x))
        x = x + a
        return x + self.ffn(self.ln2(x)), state


def get_inputs():
    return [torch.randn(2, 1024, 2048)]


def get_init_inputs():
    return [2048, 64, 7168]
