import torch
import torch.nn as nn
import torch.nn.functional as F


def RWKV7_OP(r, w, k, v, a, b, H, N):
    B, T, C = r.size()
    r = r.view(B, T, H, N).float()
    k = k.view(B, T, H, N).float()
    v = v.view(B, T, H, N).float()
    a = a.view(B, T, H, N).float()
    b = b.view(B, T, H, N).float()
    w = torch.exp(-torch.exp(w.view(B, T, H, N).float()))
    out = torch.zeros((B, T, H, N), device=r.device, dtype=torch.float)
    state = torch.zeros((B, H, N, N), device=r.device, dtype=torch.float)

    for t in range(T):
        kk = k[:, t, :].view(B, H, 1, N)
        rr = r[:, t, :].view(B, H, N, 1)
        vv = v[:, t, :].view(B, H, N, 1)
        aa = a[:, t, :].view(B, H, N, 1)
        bb = b[:, t, :].view(B, H, 1, N)
        state = state * w[:, t, :, None, :] + state @ aa @ bb + vv @ kk
        out[:, t, :] = (state @ rr).view(B, H, N)
    return out.view(B, T, C)


class RWKV_Tmix_x070(nn.Module):
    def __init__(self, n_layer, C, N, layer_id):
        super().__init__()
        self.layer_id, self.head_size = layer_id, N
        H = self.n_head = C // N
        ratio_0_to_1 = layer_id / max(n_layer - 1, 1)
        ratio_1_to_almost0 = 1.0 - (layer_id / n_layer)
        ddd = torch.arange(C).float().view(1, 1, C) / C
        self.x_r = nn.Parameter(1.0 - torch.pow(ddd, 0.2 * ratio_1_to_almost0))
        self.x_w = nn.Parameter(1.0 - torch.pow(ddd, 0.9 * ratio_1_to_almost0))
        self.x_k = nn.Parameter(1.0 - (torch.pow(ddd, 0.9 * ratio_1_to_almost0) + 0.4 * ratio_0_to_1))
        self.x_v = nn.Parameter(1.0 - (torch.pow(ddd, 0.4 * ratio_1_to_almost0) + 0.6 * ratio_0_to_1))
        self.x_a = nn.Parameter(1.0 - torch.pow(ddd, 0.9 * ratio_1_to_almost0))
        self.x_g = nn.Parameter(1.0 - torch.pow(ddd, 0.2 * ratio_1_to_almost0))

        def ortho_init(*shape, scale=0.1):
            return nn.Parameter(nn.init.orthogonal_(torch.zeros(*shape), gain=scale * (max(shape) / min(shape)) ** 0.5))

        decay_speed = torch.arange(C).float() / (C - 1)
        decay_speed = -7 + 5 * decay_speed ** (0.85 + 1.0 * ratio_0_to_1**0.5)
        D = 24
        self.w1, self.w2 = ortho_init(C, D), ortho_init(D, C)
        self.w0 = nn.Parameter(decay_speed.reshape(1, 1, C) + 0.5)
        self.a1, self.a2 = ortho_init(C, D), ortho_init(D, C)
        self.a0 = nn.Parameter(torch.zeros(1, 1, C))
        if layer_id > 0:
            self.v1, self.v2 = ortho_init(C, 16), ortho_init(16, C)
            self.v0 = nn.Parameter(torch.zeros(1, 1, C) + 1.0)
        self.g1, self.g2 = ortho_init(C, 40), ortho_init(40, C, scale=1.0)
        self.k_k = nn.Parameter(torch.ones(1, 1, C) * 0.85)
        self.k_a = nn.Parameter(torch.ones(1, 1, C))
        self.r_k = nn.Parameter(torch.randn(H, N) * 0.1)
        self.time_shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.receptance = nn.Linear(C, C, bias=False)
        self.key = nn.Linear(C, C, bias=False)
        self.value = nn.Linear(C, C, bias=False)
        self.output = nn.Linear(C, C, bias=False)
        self.ln_x = nn.GroupNorm(H, C, eps=64e-5)

    def forward(self, x, v_first):
        B, T, C = x.size()
        H = self.n_head
        xx = self.time_shift(x) - x
        xr = x + xx * self.x_r
        xw = x + xx * self.x_w
        xk = x + xx * self.x_k
        xv = x + xx * self.x_v
        xa = x + xx * self.x_a
        xg = x + xx * self.x_g

        r = self.receptance(xr)
        w = -F.softplus(-(self.w0 + torch.tanh(xw @ self.w1) @ self.w2)) - 0.5  # soft-clamp to (-inf, -0.5)
        k = self.key(xk)
        v = self.value(xv)
        if self.layer_id == 0:
            v_first = v  # store the v of the first layer
        else:
            v = v + (v_first - v) * torch.sigmoid(self.v0 + (xv @ self.v1) @ self.v2)  # value residual
        a = torch.sigmoid(self.a0 + (xa @ self.a1) @ self.a2)  # "in-context learning rate"
        g = torch.sigmoid(xg @ self.g1) @ self.g2

        kk = k * self.k_k
        kk = F.normalize(kk.view(B, T, H, -1), dim=-1, p=2.0).view(B, T, C)
        k = k * (1 + (a - 1) * self.k_a)

        x = RWKV7_OP(r, w, k, v, -kk, kk * a, H, self.head_size)
        x = self.ln_x(x.view(B * T, C)).view(B, T, C)
        bonus = (r.view(B, T, H, -1) * k.view(B, T, H, -1) * self.r_k).sum(dim=-1, keepdim=True)
        x = x + (bonus * v.view(B, T, H, -1)).view(B, T, C)
        return self.output(x * g), v_first


class RWKV_CMix_x070(nn.Module):
    def __init__(self, n_layer, C, layer_id):
        super().__init__()
        self.time_shift = nn.ZeroPad2d((0, 0, 1, -1))
        ddd = torch.arange(C).float().view(1, 1, C) / C
        self.x_k = nn.Parameter(1.0 - torch.pow(ddd, (1.0 - layer_id / n_layer) ** 4))
        self.key = nn.Linear(C, C * 4, bias=False)
        self.value = nn.Linear(C * 4, C, bias=False)

    def forward(self, x):
        xx = self.time_shift(x) - x
        k = x + xx * self.x_k
        k = torch.relu(self.key(k)) ** 2
        return self.value(k)


class Block(nn.Module):
    def __init__(self, n_layer, C, N, layer_id):
        super().__init__()
        self.layer_id = layer_id
        if layer_id == 0:
            self.ln0 = nn.LayerNorm(C)  # only used in block 0
        self.ln1 = nn.LayerNorm(C)
        self.ln2 = nn.LayerNorm(C)
        self.att = RWKV_Tmix_x070(n_layer, C, N, layer_id)
        self.ffn = RWKV_CMix_x070(n_layer, C, layer_id)

    def forward(self, x, v_first):
        if self.layer_id == 0:
            x = self.ln0(x)
        xx, v_first = self.att(self.ln1(x), v_first)
        x = x + xx
        x = x + self.ffn(self.ln2(x))
        return x, v_first


class L2Wrap:
    """The penalty on the largest logits that the RWKV trainer adds, written as a plain term."""

    @staticmethod
    def apply(loss, y, factor=1e-4):
        maxx = y.float().amax(dim=-1)
        return loss + 0.5 * factor * maxx.pow(2).mean()


class Model(nn.Module):
    """RWKV-7 language model: token shift, low-rank decay and learning-rate gates, a generalised delta rule state, value residual to layer 0."""

    def __init__(self, vocab, n_embd, head_size, n_layer):
        super().__init__()
        self.emb = nn.Embedding(vocab, n_embd)
        self.blocks = nn.ModuleList([Block(n_layer, n_embd, head_size, i) for i in range(n_layer)])
        self.ln_out = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab, bias=False)

    def forward(self, idx, targets):
        x = self.emb(idx)
        v_first = torch.empty_like(x)
        for block in self.blocks:
            x, v_first = block(x, v_first)
        x = self.ln_out(x)
        logits = self.head(x)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return L2Wrap.apply(loss, logits), logits[:, -1]


def get_inputs():
    seq = torch.randint(0, 999, (4, 31))
    return [seq[:, :-1].contiguous(), seq[:, 1:].contiguous()]


def get_init_inputs():
    return [999, 144, 48, 3]
