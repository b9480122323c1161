import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def inverse_sigmoid(x, eps=1e-5):
    x = x.clamp(min=0.0, max=1.0)
    return torch.log(x.clamp(min=eps) / (1 - x).clamp(min=eps))


class MLP(nn.Module):
    def __init__(self, i, h, o, n):
        super().__init__()
        dims = [i] + [h] * (n - 1) + [o]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims[:-1], dims[1:]))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(x)) if i < len(self.layers) - 1 else layer(x)
        return x


class MSDeformableAttention(nn.Module):
    def __init__(self, dim, heads, levels, points):
        super().__init__()
        self.heads, self.levels, self.points, self.hd = heads, levels, points, dim // heads
        self.sampling_offsets = nn.Linear(dim, heads * levels * points * 2)
        self.attention_weights = nn.Linear(dim, heads * levels * points)
        self.value_proj = nn.Linear(dim, dim)
        self.output_proj = nn.Linear(dim, dim)
        nn.init.normal_(self.sampling_offsets.weight, std=0.01)
        theta = torch.arange(heads, dtype=torch.float32) * (2.0 * math.pi / heads)
        grid = torch.stack([theta.cos(), theta.sin()], -1)
        grid = (grid / grid.abs().max(-1, keepdim=True).values).view(heads, 1, 1, 2).repeat(1, levels, points, 1)
        grid = grid * torch.arange(1, points + 1).view(1, 1, -1, 1)
        self.sampling_offsets.bias = nn.Parameter(grid.reshape(-1))

    def forward(self, query, ref, value, shapes):
        bs, Lq, _ = query.shape
        value = self.value_proj(value).reshape(bs, -1, self.heads, self.hd)
        off = self.sampling_offsets(query).reshape(bs, Lq, self.heads, self.levels, self.points, 2)
        w = self.attention_weights(query).reshape(bs, Lq, self.heads, self.levels * self.points)
        w = F.softmax(w, dim=-1)
        # reference boxes (cx, cy, w, h): offsets are scaled by half the box
        loc = ref[:, :, None, :, None, :2] + off / self.points * ref[:, :, None, :, None, 2:] * 0.5
        grids = 2 * loc - 1
        sampled = []
        for lvl, v in enumerate(value.split([h * w_ for h, w_ in shapes], dim=1)):
            h, w_ = shapes[lvl]
            v = v.flatten(2).permute(0, 2, 1).reshape(bs * self.heads, self.hd, h, w_)
            g = grids[:, :, :, lvl].permute(0, 2, 1, 3, 4).flatten(0, 1)
            sampled.append(F.grid_sample(v, g.to(v.dtype), mode="bilinear", padding_mode="zeros", align_corners=False))
        w = w.permute(0, 2, 1, 3).reshape(bs * self.heads, 1, Lq, self.levels * self.points)
        out = (torch.stack(sampled, dim=-2).flatten(-2) * w).sum(-1)
        return self.output_proj(out.reshape(bs, self.heads * self.hd, Lq).permute(0, 2, 1))


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads, ffn, levels, points):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.cross_attn = MSDeformableAttention(dim, heads, levels, points)
        self.linear1, self.linear2 = nn.Linear(dim, ffn), nn.Linear(ffn, dim)

    def forward(self, tgt, ref, memory, shapes, attn_mask, pos):
        q = k = tgt + pos
        tgt2, _ = self.self_attn(q, k, value=tgt, attn_mask=attn_mask, need_weights=False)
        tgt = self.norm1(tgt + tgt2)
        tgt = self.norm2(tgt + self.cross_attn(tgt + pos, ref, memory, shapes))
        return self.norm3(tgt + self.linear2(F.relu(self.linear1(tgt))))


class Model(nn.Module):
    """Query selection over the encoder memory, then decoder layers with iterative box refinement."""

    def __init__(self, dim, heads, ffn, depth, n_cls, shapes, points):
        super().__init__()
        self.shapes = shapes
        self.enc_output = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim))
        self.enc_score = nn.Linear(dim, n_cls)
        self.enc_bbox = MLP(dim, dim, 4, 3)
        self.query_pos_head = MLP(4, 2 * dim, dim, 2)
        self.layers = nn.ModuleList([DecoderLayer(dim, heads, ffn, len(shapes), points) for _ in range(depth)])
        self.bbox_head = nn.ModuleList([MLP(dim, dim, 4, 3) for _ in range(depth)])
        self.score_head = nn.ModuleList([nn.Linear(dim, n_cls) for _ in range(depth)])

    def anchors(self, device):
        out = []
        for lvl, (h, w) in enumerate(self.shapes):
            gy, gx = torch.meshgrid(torch.arange(h, device=device), torch.arange(w, device=device), indexing="ij")
            xy = (torch.stack([gx, gy], -1).float() + 0.5) / torch.tensor([w, h], device=device)
            out.append(torch.cat([xy, torch.full_like(xy, 0.05 * 2.0 ** lvl)], -1).view(-1, 4))
        return inverse_sigmoid(torch.cat(out))[None]

    def forward(self, memory, picked):
        # picked: indices of the proposals that the matcher / top-k on the host chose
        mem = self.enc_output(memory)
        logits = self.enc_score(mem)
        coord = self.enc_bbox(mem) + self.anchors(memory.device).to(mem.dtype)
        ref = coord.gather(1, picked.unsqueeze(-1).expand(-1, -1, 4)).detach().sigmoid()
        tgt = mem.gather(1, picked.unsqueeze(-1).expand(-1, -1, mem.shape[-1])).detach()
        boxes, scores = [], []
        for layer, bb, sc in zip(self.layers, self.bbox_head, self.score_head):
            tgt = layer(tgt, ref.unsqueeze(2), memory, self.shapes, None, self.query_pos_head(ref))
            new = torch.sigmoid(bb(tgt) + inverse_sigmoid(ref))
            boxes.append(new)
            scores.append(sc(tgt))
            ref = new.detach()
        return torch.stack(boxes), torch.stack(scores), coord, logits


def get_inputs():
    return [torch.randn(16, 8400, 256), torch.randint(0, 8400, (16, 300))]


def get_init_inputs():
    return [256, 8, 1024, 3, 80, [[80, 80], [40, 40], [20, 20]], 4]
