import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class PositionEmbeddingSine(nn.Module):
    def __init__(self, num_pos_feats, temperature=10000):
        super().__init__()
        self.num_pos_feats = num_pos_feats
        self.temperature = temperature
        self.scale = 2 * math.pi

    def forward(self, mask):
        not_mask = ~mask
        y_embed = not_mask.cumsum(1, dtype=torch.float32)
        x_embed = not_mask.cumsum(2, dtype=torch.float32)
        y_embed = y_embed / (y_embed[:, -1:, :] + 1e-6) * self.scale
        x_embed = x_embed / (x_embed[:, :, -1:] + 1e-6) * self.scale
        dim_t = torch.arange(self.num_pos_feats, dtype=torch.float32, device=mask.device)
        dim_t = self.temperature ** (2 * torch.div(dim_t, 2, rounding_mode="floor") / self.num_pos_feats)
        pos_x = x_embed[:, :, :, None] / dim_t
        pos_y = y_embed[:, :, :, None] / dim_t
        pos_x = torch.stack((pos_x[..., 0::2].sin(), pos_x[..., 1::2].cos()), dim=4).flatten(3)
        pos_y = torch.stack((pos_y[..., 0::2].sin(), pos_y[..., 1::2].cos()), dim=4).flatten(3)
        return torch.cat((pos_y, pos_x), dim=3).permute(0, 3, 1, 2)


class DecoderLayer(nn.Module):
    def __init__(self, d, nhead, ff):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d, nhead, dropout=0.0)
        self.multihead_attn = nn.MultiheadAttention(d, nhead, dropout=0.0)
        self.linear1, self.linear2 = nn.Linear(d, ff), nn.Linear(ff, d)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, tgt, memory, key_padding_mask, pos, query_pos):
        q = k = tgt + query_pos
        tgt = self.norm1(tgt + self.self_attn(q, k, value=tgt)[0])
        tgt2 = self.multihead_attn(
            query=tgt + query_pos, key=memory + pos, value=memory, key_padding_mask=key_padding_mask
        )[0]
        tgt = self.norm2(tgt + tgt2)
        tgt = tgt + self.linear2(F.relu(self.linear1(tgt)))
        return self.norm3(tgt)


class MLP(nn.Module):
    def __init__(self, i, h, o, n):
        super().__init__()
        dims = [h] * (n - 1)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip([i] + dims, dims + [o]))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(x)) if i < len(self.layers) - 1 else layer(x)
        return x


class Model(nn.Module):
    """DETR-style decoder over a padded feature map with learned object queries,
    auxiliary outputs from every layer, class and box heads shared."""

    def __init__(self, in_ch, d, nhead, ff, layers, num_queries, num_classes):
        super().__init__()
        self.input_proj = nn.Conv2d(in_ch, d, kernel_size=1)
        self.pos_embed = PositionEmbeddingSine(d // 2)
        self.query_embed = nn.Embedding(num_queries, d)
        self.query_feat = nn.Embedding(num_queries, d)
        self.layers = nn.ModuleList([DecoderLayer(d, nhead, ff) for _ in range(layers)])
        self.norm = nn.LayerNorm(d)
        self.class_embed = nn.Linear(d, num_classes + 1)
        self.bbox_embed = MLP(d, d, 4, 3)
        for name, p in self.named_parameters():
            if p.dim() > 1 and name.startswith("layers"):
                nn.init.xavier_uniform_(p)

    def forward(self, feat, mask):
        pos = self.pos_embed(mask)
        src = self.input_proj(feat)
        bs, c, h, w = src.shape
        src = src.flatten(2).permute(2, 0, 1)
        pos = pos.flatten(2).permute(2, 0, 1)
        query_pos = self.query_embed.weight.unsqueeze(1).repeat(1, bs, 1)
        mask = mask.flatten(1)
        tgt = self.query_feat.weight.unsqueeze(1).repeat(1, bs, 1)
        intermediate = []
        for layer in self.layers:
            tgt = layer(tgt, src, mask, pos, query_pos)
            intermediate.append(self.norm(tgt))
        hs = torch.stack(intermediate).transpose(1, 2)
        outputs_class = self.class_embed(hs)
        outputs_coord = self.bbox_embed(hs).sigmoid()
        cx, cy, bw, bh = outputs_coord.unbind(-1)
        boxes = torch.stack([cx - 0.5 * bw, cy - 0.5 * bh, cx + 0.5 * bw, cy + 0.5 * bh], dim=-1)
        return outputs_class, outputs_coord, boxes[-1].clamp(0, 1)


def get_inputs():
    g = torch.Generator().manual_seed(9)
    feat = torch.randn(2, 384, 23, 31, generator=g)
    mask = torch.zeros(2, 23, 31, dtype=torch.bool)
    mask[0, 19:, :] = True
    mask[1, :, 26:] = True
    return [feat, mask]


def get_init_inputs():
    return [384, 192, 8, 768, 4, 75, 21]
