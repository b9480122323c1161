import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class RelPositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len):
        super().__init__()
        pos = torch.arange(max_len - 1, -max_len, -1.0).unsqueeze(1)
        div = torch.exp(torch.arange(0, d_model, 2).float() * -(math.log(10000.0) / d_model))
        pe = torch.zeros(2 * max_len - 1, d_model)
        pe[:, 0::2] = torch.sin(pos * div)
        pe[:, 1::2] = torch.cos(pos * div)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, T):
        mid = self.pe.size(1) // 2
        return self.pe[:, mid - T + 1: mid + T]


class RelPosAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.d_k = h, d // h
        self.linear_q, self.linear_k, self.linear_v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.linear_pos = nn.Linear(d, d, bias=False)
        self.linear_out = nn.Linear(d, d)
        self.pos_bias_u = nn.Parameter(torch.empty(h, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.empty(h, self.d_k))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)

    def rel_shift(self, x):
        B, H, T, P = x.size()
        zero_pad = torch.zeros((B, H, T, 1), device=x.device, dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=-1).view(B, H, P + 1, T)
        return x_padded[:, :, 1:].view_as(x)[:, :, :, : P // 2 + 1]

    def forward(self, x, pos_emb, mask):
        B, T, D = x.shape
        q = self.linear_q(x).view(B, T, self.h, self.d_k)
        k = self.linear_k(x).view(B, T, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(x).view(B, T, self.h, self.d_k).transpose(1, 2)
        p = self.linear_pos(pos_emb).view(1, -1, self.h, self.d_k).transpose(1, 2)
        ac = torch.matmul((q + self.pos_bias_u).transpose(1, 2), k.transpose(-2, -1))
        bd = torch.matmul((q + self.pos_bias_v).transpose(1, 2), p.transpose(-2, -1))
        scores = (ac + self.rel_shift(bd)) / math.sqrt(self.d_k)
        mask = mask[:, None, None, :].eq(0)
        scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
        attn = torch.softmax(scores, dim=-1).masked_fill(mask, 0.0)
        return self.linear_out(torch.matmul(attn, v).transpose(1, 2).reshape(B, T, D))


class ConvModule(nn.Module):
    def __init__(self, d, k):
        super().__init__()
        self.pw1 = nn.Conv1d(d, 2 * d, 1)
        self.dw = nn.Conv1d(d, d, k, padding=(k - 1) // 2, groups=d)
        self.norm = nn.BatchNorm1d(d)
        self.pw2 = nn.Conv1d(d, d, 1)

    def forward(self, x, mask):
        x = F.glu(self.pw1(x.transpose(1, 2)), dim=1)
        x = x.masked_fill(~mask[:, None, :], 0.0)
        x = F.silu(self.norm(self.dw(x)))
        return self.pw2(x).transpose(1, 2)


class ConformerLayer(nn.Module):
    def __init__(self, d, h, ff, k):
        super().__init__()
        mk = lambda: nn.Sequential(nn.LayerNorm(d), nn.Linear(d, ff), nn.SiLU(), nn.Linear(ff, d))
        self.ff1, self.ff2 = mk(), mk()
        self.norm_mha, self.norm_conv, self.norm_final = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = RelPosAttention(d, h)
        self.conv = ConvModule(d, k)

    def forward(self, x, pos, mask):
        x = x + 0.5 * self.ff1(x)
        x = x + self.attn(self.norm_mha(x), pos, mask)
        x = x + self.conv(self.norm_conv(x), mask)
        x = x + 0.5 * self.ff2(x)
        return self.norm_final(x)


class Model(nn.Module):
    """Conformer encoder with Transformer-XL style relative attention by hand,
    conv2d subsampling and a CTC projection."""

    def __init__(self, feat, d, layers, h, ff, k, vocab, max_len=200):
        super().__init__()
        self.sub = nn.Sequential(nn.Conv2d(1, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 32, 3, 2), nn.ReLU())
        self.sub_out = nn.Linear(32 * (((feat - 1) // 2 - 1) // 2), d)
        self.pos_enc = RelPositionalEncoding(d, max_len)
        self.scale = math.sqrt(d)
        self.layers = nn.ModuleList([ConformerLayer(d, h, ff, k) for _ in range(layers)])
        self.ctc = nn.Linear(d, vocab)

    def forward(self, feats, lengths):
        x = self.sub(feats.unsqueeze(1))
        b, c, t, f = x.size()
        x = self.sub_out(x.transpose(1, 2).contiguous().view(b, t, c * f)) * self.scale
        out_len = ((lengths - 1) // 2 - 1) // 2
        mask = torch.arange(t, device=x.device)[None, :] < out_len[:, None]
        pos = self.pos_enc(t)
        for layer in self.layers:
            x = layer(x, pos, mask)
        return F.log_softmax(self.ctc(x), dim=-1)


def get_inputs():
    g = torch.Generator().manual_seed(5)
    return [torch.randn(3, 331, 80, generator=g), torch.tensor([331, 287, 214])]


def get_init_inputs():
    return [80, 144, 3, 4, 576, 15, 257]
