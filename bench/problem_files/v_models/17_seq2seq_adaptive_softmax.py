import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=64):
        super().__init__()
        pos = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(pos * div)
        pe[:, 0, 1::2] = torch.cos(pos * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(0)]


class Model(nn.Module):
    """nn.TransformerEncoder (pre-norm) and nn.TransformerDecoder (post-norm), sequence first, padding and causal
    masks, an adaptive softmax over a long-tailed vocabulary and a copy gate from nn.MultiheadAttention."""

    def __init__(self, vocab, d_model, nhead, ff, enc_layers, dec_layers, cutoffs):
        super().__init__()
        self.d_model = d_model
        self.src = nn.Embedding(vocab, d_model, padding_idx=0)
        self.pos = PositionalEncoding(d_model)
        enc = nn.TransformerEncoderLayer(d_model, nhead, ff, dropout=0.0, activation="gelu", norm_first=True)
        self.encoder = nn.TransformerEncoder(enc, enc_layers, norm=nn.LayerNorm(d_model), enable_nested_tensor=False)
        dec = nn.TransformerDecoderLayer(d_model, nhead, ff, dropout=0.0, activation=F.silu)
        self.decoder = nn.TransformerDecoder(dec, dec_layers)
        self.copy = nn.MultiheadAttention(d_model, 2, kdim=d_model, vdim=d_model, add_bias_kv=True)
        self.gate = nn.Linear(2 * d_model, 1)
        self.criterion = nn.AdaptiveLogSoftmaxWithLoss(d_model, vocab, cutoffs, div_value=2.0, head_bias=True)
        for p in self.encoder.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, src, tgt, target):
        """all (time, batch)"""
        pad = src.eq(0).t()
        causal = torch.triu(torch.full((tgt.size(0), tgt.size(0)), float("-inf"), device=src.device), diagonal=1)
        scale = math.sqrt(self.d_model)
        memory = self.encoder(self.pos(self.src(src) * scale), src_key_padding_mask=pad)
        y = self.pos(self.src(tgt) * scale)
        y = self.decoder(y, memory, tgt_mask=causal, memory_key_padding_mask=pad)
        ctx, weights = self.copy(y, memory, memory, key_padding_mask=pad, need_weights=True, average_attn_weights=True)
        g = torch.sigmoid(self.gate(torch.cat([y, ctx], -1))).squeeze(-1)
        h = y + ctx * g.unsqueeze(-1)
        out, loss = self.criterion(h.reshape(-1, self.d_model), target.reshape(-1))
        hit = (src.t().unsqueeze(1) == target.t().unsqueeze(2)).to(weights.dtype)
        copied = (weights[..., :-1] * hit).sum(-1).t()
        mixture = torch.log((1 - g) * out.view_as(g).exp() + g * copied + 1e-9)
        return loss, mixture, g


def get_inputs():
    src = torch.randint(1, 500, (19, 4))
    src[14:, 1] = 0
    src[9:, 3] = 0
    tgt = torch.randint(1, 500, (15, 4))
    target = torch.cat([tgt[1:], src[:1]])
    target[::3] = src[1:6]
    return [src, tgt, target]


def get_init_inputs():
    return [500, 60, 5, 104, 2, 2, [40, 150, 320]]
