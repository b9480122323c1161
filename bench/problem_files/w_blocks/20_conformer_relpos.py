import math
import torch
from torch import nn
import torch.nn.functional as F


class FeedForward(nn.Module):
    def __init__(self, d, mult):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d * mult), nn.SiLU(), nn.Linear(d * mult, d))

    def forward(self, x):
        return self.net(x)


class RelPositionMHA(nn.Module):
    """Transformer-XL relative positions, matrix_ac + rel_shift(matrix_bd), with a padding mask."""

    def __init__(self, d, h):
        super().__init__()
        self.h, self.d_k = h, d // h
        self.norm = nn.LayerNorm(d)
        self.linear_q, self.linear_k, self.linear_v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.linear_pos = nn.Linear(d, d, bias=False)
        self.linear_out = nn.Linear(d, d)
        self.pos_bias_u = nn.Parameter(torch.randn(h, self.d_k) * 0.02)
        self.pos_bias_v = nn.Parameter(torch.randn(h, self.d_k) * 0.02)

    def rel_shift(self, x):
        b, h, qlen, pos_len = x.size()
        x = F.pad(x, pad=(1, 0))
        x = x.view(b, h, -1, qlen)
        return x[:, :, 1:].view(b, h, qlen, pos_len)

    def forward(self, x, pos_emb, mask):
        x = self.norm(x)
        b, t, d = x.shape
        q = self.linear_q(x).view(b, -1, self.h, self.d_k)
        k = self.linear_k(x).view(b, -1, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(x).view(b, -1, self.h, self.d_k).transpose(1, 2)
        p = self.linear_pos(pos_emb).view(pos_emb.size(0), -1, self.h, self.d_k).transpose(1, 2)
        q_u = (q + self.pos_bias_u).transpose(1, 2)
        q_v = (q + self.pos_bias_v).transpose(1, 2)
        matrix_bd = self.rel_shift(torch.matmul(q_v, p.transpose(-2, -1)))
        matrix_ac = torch.matmul(q_u, k.transpose(-2, -1))
        matrix_bd = matrix_bd[:, :, :, : matrix_ac.size(-1)]
        scores = (matrix_ac + matrix_bd) / math.sqrt(self.d_k)
        m = mask.unsqueeze(1)
        scores = scores.masked_fill(m, -10000.0)
        attn = torch.softmax(scores, dim=-1).masked_fill(m, 0.0)
        out = torch.matmul(attn, v).transpose(1, 2).reshape(b, -1, self.h * self.d_k)
        return self.linear_out(out)


class ConvModule(nn.Module):
    def __init__(self, d, kernel):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.pointwise_conv1 = nn.Conv1d(d, 2 * d, 1)
        self.depthwise_conv = nn.Conv1d(d, d, kernel, padding=(kernel - 1) // 2, groups=d)
        self.batch_norm = nn.BatchNorm1d(d)
        self.activation = nn.SiLU()
        self.pointwise_conv2 = nn.Conv1d(d, d, 1)

    def forward(self, x, pad_mask):
        x = self.norm(x).transpose(1, 2)
        x = F.glu(self.pointwise_conv1(x), dim=1)
        x = x.masked_fill(pad_mask.unsqueeze(1), 0.0)
        x = self.activation(self.batch_norm(self.depthwise_conv(x)))
        return self.pointwise_conv2(x).transpose(1, 2)


class ConformerLayer(nn.Module):
    def __init__(self, d, h, mult, kernel):
        super().__init__()
        self.ff1, self.ff2 = FeedForward(d, mult), FeedForward(d, mult)
        self.self_attn = RelPositionMHA(d, h)
        self.conv = ConvModule(d, kernel)
        self.norm_out = nn.LayerNorm(d)

    def forward(self, x, pos_emb, att_mask, pad_mask):
        x = x + self.ff1(x) * 0.5
        x = x + self.self_attn(x, pos_emb, att_mask)
        x = x + self.conv(x, pad_mask)
        x = x + self.ff2(x) * 0.5
        return self.norm_out(x)


class Model(nn.Module):
    def __init__(self, d, h, mult, kernel, depth):
        super().__init__()
        self.d = d
        self.layers = nn.ModuleList([ConformerLayer(d, h, mult, kernel) for _ in range(depth)])

    def pos_encoding(self, t, x):
        pos = torch.arange(t - 1, -t, -1, dtype=torch.float32, device=x.device).unsqueeze(1)
        div = torch.exp(torch.arange(0, self.d, 2, dtype=torch.float32, device=x.device) * -(math.log(10000.0) / self.d))
        pe = torch.stack([torch.sin(pos * div), torch.cos(pos * div)], dim=-1).flatten(1)
        return pe.unsqueeze(0).to(x.dtype)

    def forward(self, x, lengths):
        t = x.shape[1]
        x = x * math.sqrt(self.d)
        valid = torch.arange(t, device=x.device).expand(x.shape[0], -1) < lengths.unsqueeze(-1)
        att_mask = ~(valid.unsqueeze(1) & valid.unsqueeze(2))
        pos_emb = self.pos_encoding(t, x)
        for layer in self.layers:
            x = layer(x, pos_emb, att_mask, ~valid)
        return x * valid.unsqueeze(-1)


def get_inputs():
    return [torch.randn(16, 512, 512), torch.randint(300, 513, (16,))]


def get_init_inputs():
    return [512, 8, 4, 31, 2]
