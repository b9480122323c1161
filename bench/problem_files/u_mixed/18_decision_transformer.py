import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim, heads, max_t):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(0.0))
        self.register_buffer("mask", torch.tril(torch.ones(max_t, max_t)).view(1, 1, max_t, max_t))

    def forward(self, x, key_mask):
        B, T, C = x.shape
        N, D = self.heads, C // self.heads
        q, k, v = self.c_attn(x).view(B, T, 3, N, D).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        w = q @ k.transpose(2, 3) / D ** 0.5
        w = w.masked_fill(self.mask[..., :T, :T] == 0, torch.finfo(w.dtype).min)
        w = w + (1.0 - key_mask[:, None, None, :].float()) * -1e4
        y = (F.softmax(w, dim=-1) @ v).transpose(1, 2).contiguous().view(B, T, C)
        x = self.ln1(x + self.c_proj(y))
        return self.ln2(x + self.mlp(x))


class Model(nn.Module):
    """Decision transformer: return-to-go from rewards, interleaved (R, s, a) tokens, masked action loss."""

    def __init__(self, s_dim, a_dim, dim, heads, layers, ctx, max_ep):
        super().__init__()
        self.embed_t = nn.Embedding(max_ep, dim)
        self.embed_r = nn.Linear(1, dim)
        self.embed_s = nn.Linear(s_dim, dim)
        self.embed_a = nn.Linear(a_dim, dim)
        self.ln = nn.LayerNorm(dim)
        self.blocks = nn.ModuleList(Block(dim, heads, 3 * ctx) for _ in range(layers))
        self.predict_a = nn.Sequential(nn.Linear(dim, a_dim), nn.Tanh())
        self.predict_s = nn.Linear(dim, s_dim)
        self.predict_r = nn.Linear(dim, 1)

    def forward(self, states, actions, rewards, timesteps, mask):
        B, T, _ = states.shape
        gamma = 0.99
        disc = gamma ** torch.arange(T, device=states.device, dtype=states.dtype)
        r = rewards * mask * disc
        rtg = torch.flip(torch.cumsum(torch.flip(r, [1]), dim=1), [1]) / disc
        rtg = (rtg - rtg.mean(1, keepdim=True)) / (rtg.std(1, keepdim=True) + 1e-6)

        te = self.embed_t(timesteps)
        h = torch.stack(
            (self.embed_r(rtg.unsqueeze(-1)) + te, self.embed_s(states) + te, self.embed_a(actions) + te), dim=1
        ).permute(0, 2, 1, 3).reshape(B, 3 * T, -1)
        h = self.ln(h)
        key_mask = torch.stack((mask, mask, mask), dim=1).permute(0, 2, 1).reshape(B, 3 * T)
        for blk in self.blocks:
            h = blk(h, key_mask)
        h = h.reshape(B, T, 3, -1).permute(0, 2, 1, 3)
        a_pred = self.predict_a(h[:, 1])
        s_pred = self.predict_s(h[:, 2])
        r_pred = self.predict_r(h[:, 2]).squeeze(-1)
        err = (a_pred - torch.tanh(actions)).pow(2).mean(-1)
        loss = (err * mask).sum() / mask.sum().clamp(min=1)
        return loss, a_pred, s_pred, r_pred


def get_inputs():
    B, T = 4, 12
    lens = torch.tensor([12, 9, 7, 11])
    mask = (torch.arange(T)[None] >= (T - lens)[:, None]).float()   # left padded
    start = torch.randint(0, 50, (B, 1))
    return [torch.randn(B, T, 11), torch.randn(B, T, 3), torch.rand(B, T), start + torch.arange(T), mask]


def get_init_inputs():
    return [11, 3, 48, 2, 2, 12, 100]
