import torch
import torch.nn as nn
import torch.nn.functional as F


def inverse_sigmoid(x, eps=1e-5):
    x = x.clip(min=0.0, max=1.0)
    return torch.log(x.clip(min=eps) / (1 - x).clip(min=eps))


class ConvNormLayer(nn.Module):
    def __init__(self, ch_in, ch_out, k, s, act=True):
        super().__init__()
        self.conv = nn.Conv2d(ch_in, ch_out, k, s, padding=(k - 1) // 2, bias=False)
        self.norm = nn.BatchNorm2d(ch_out)
        self.act = nn.SiLU(inplace=True) if act else nn.Identity()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class RepVggBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.conv1, self.conv2 = ConvNormLayer(ch, ch, 3, 1, act=False), ConvNormLayer(ch, ch, 1, 1, act=False)

    def forward(self, x):
        return F.silu(self.conv1(x) + self.conv2(x))


class CSPRepLayer(nn.Module):
    def __init__(self, ch_in, ch):
        super().__init__()
        self.conv1, self.conv2 = ConvNormLayer(ch_in, ch, 1, 1), ConvNormLayer(ch_in, ch, 1, 1)
        self.bottlenecks = nn.Sequential(RepVggBlock(ch))

    def forward(self, x):
        return self.bottlenecks(self.conv1(x)) + self.conv2(x)


class AIFI(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(dim, heads, 0.0, batch_first=True)
        self.linear1, self.linear2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    @staticmethod
    def build_2d_sincos_position_embedding(w, h, embed_dim, temperature=10000.0):
        grid_w, grid_h = torch.arange(int(w), dtype=torch.float32), torch.arange(int(h), dtype=torch.float32)
        grid_w, grid_h = torch.meshgrid(grid_w, grid_h, indexing="ij")
        omega = 1.0 / (temperature ** (torch.arange(embed_dim // 4, dtype=torch.float32) / (embed_dim // 4)))
        out_w, out_h = grid_w.flatten()[..., None] @ omega[None], grid_h.flatten()[..., None] @ omega[None]
        return torch.concat([out_w.sin(), out_w.cos(), out_h.sin(), out_h.cos()], dim=1)[None, :, :]

    def forward(self, x):
        B, C, H, W = x.shape
        src = x.flatten(2).permute(0, 2, 1)
        pos_embed = self.build_2d_sincos_position_embedding(W, H, C).to(src.device)
        q = k = src + pos_embed
        src = self.norm1(src + self.self_attn(q, k, value=src, need_weights=False)[0])
        src = self.norm2(src + self.linear2(F.gelu(self.linear1(src))))
        return src.permute(0, 2, 1).reshape(-1, C, H, W).contiguous()


class MSDeformableAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, num_levels, num_points):
        super().__init__()
        self.embed_dim, self.num_heads, self.num_levels, self.num_points = embed_dim, num_heads, num_levels, num_points
        self.head_dim = embed_dim // num_heads
        total = num_heads * num_levels * num_points
        self.sampling_offsets, self.attention_weights = nn.Linear(embed_dim, total * 2), nn.Linear(embed_dim, total)
        self.value_proj, self.output_proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
        nn.init.normal_(self.sampling_offsets.weight, std=0.02)
        thetas = torch.arange(num_heads, dtype=torch.float32) * (2.0 * 3.141592653589793 / num_heads)
        grid_init = torch.stack([thetas.cos(), thetas.sin()], -1)
        grid_init = grid_init / grid_init.abs().max(-1, keepdim=True).values
        grid_init = grid_init.reshape(num_heads, 1, 1, 2).tile([1, num_levels, num_points, 1])
        grid_init *= torch.arange(1, num_points + 1, dtype=torch.float32).reshape(1, 1, -1, 1)
        self.sampling_offsets.bias.data[...] = grid_init.flatten()

    def forward(self, query, reference_points, value, value_spatial_shapes):
        bs, Len_q = query.shape[:2]
        Len_v = value.shape[1]
        value = self.value_proj(value).reshape(bs, Len_v, self.num_heads, self.head_dim)
        offsets = self.sampling_offsets(query).reshape(bs, Len_q, self.num_heads, self.num_levels, self.num_points, 2)
        weights = self.attention_weights(query).reshape(bs, Len_q, self.num_heads, self.num_levels * self.num_points)
        weights = F.softmax(weights, dim=-1).reshape(bs, Len_q, self.num_heads, self.num_levels, self.num_points)
        sampling_locations = (
            reference_points[:, :, None, :, None, :2]
            + offsets / self.num_points * reference_points[:, :, None, :, None, 2:] * 0.5
        )
        value_list = value.split([h * w for h, w in value_spatial_shapes], dim=1)
        sampling_grids = 2 * sampling_locations - 1
        sampling_value_list = []
        for level, (h, w) in enumerate(value_spatial_shapes):
            value_l_ = value_list[level].flatten(2).permute(0, 2, 1).reshape(bs * self.num_heads, self.head_dim, h, w)
            grid_l_ = sampling_grids[:, :, :, level].permute(0, 2, 1, 3, 4).flatten(0, 1)
            sampling_value_list.append(
                F.grid_sample(value_l_, grid_l_, mode="bilinear", padding_mode="zeros", align_corners=False)
            )
        weights = weights.permute(0, 2, 1, 3, 4).reshape(bs * self.num_heads, 1, Len_q, self.num_levels * self.num_points)
        output = (torch.stack(sampling_value_list, dim=-2).flatten(-2) * weights).sum(-1)
        output = output.reshape(bs, self.num_heads * self.head_dim, Len_q).permute(0, 2, 1)
        return self.output_proj(output)


class MLP(nn.Module):
    def __init__(self, i, h, o, n):
        super().__init__()
        dims = [h] * (n - 1)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip([i] + dims, dims + [o]))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(x)) if i < len(self.layers) - 1 else layer(x)
        return x


class DecoderLayer(nn.Module):
    def __init__(self, d, heads, levels, points):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d, heads, dropout=0.0, batch_first=True)
        self.cross_attn = MSDeformableAttention(d, heads, levels, points)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.linear1, self.linear2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, tgt, reference_points, memory, shapes, query_pos_embed):
        q = k = tgt + query_pos_embed
        tgt = self.norm1(tgt + self.self_attn(q, k, value=tgt, need_weights=False)[0])
        tgt = self.norm2(tgt + self.cross_attn(tgt + query_pos_embed, reference_points, memory, shapes))
        return self.norm3(tgt + self.linear2(F.relu(self.linear1(tgt))))


class Model(nn.Module):
    """RT-DETR-like detector: hybrid encoder (AIFI and a fusion path), top-k query selection, deformable decoder with iterative boxes."""

    def __init__(self, num_classes, d, heads, levels, points, layers, num_queries):
        super().__init__()
        self.num_classes, self.num_queries = num_classes, num_queries
        self.stem = nn.Sequential(ConvNormLayer(3, 32, 3, 2), ConvNormLayer(32, 32, 3, 2), ConvNormLayer(32, 64, 3, 2))
        self.res4, self.res5 = ConvNormLayer(64, 96, 3, 2), ConvNormLayer(96, 128, 3, 2)
        self.input_proj = nn.ModuleList([ConvNormLayer(c, d, 1, 1, act=False) for c in (64, 96, 128)])
        self.aifi = AIFI(d, heads)
        self.lateral_convs = nn.ModuleList([ConvNormLayer(d, d, 1, 1) for _ in range(2)])
        self.fpn_blocks = nn.ModuleList([CSPRepLayer(2 * d, d) for _ in range(2)])
        self.enc_output = nn.Sequential(nn.Linear(d, d), nn.LayerNorm(d))
        self.enc_score_head, self.enc_bbox_head = nn.Linear(d, num_classes), MLP(d, d, 4, 3)
        self.decoder = nn.ModuleList([DecoderLayer(d, heads, levels, points) for _ in range(layers)])
        self.dec_score_head = nn.ModuleList([nn.Linear(d, num_classes) for _ in range(layers)])
        self.dec_bbox_head = nn.ModuleList([MLP(d, d, 4, 3) for _ in range(layers)])
        self.query_pos_head = MLP(4, 2 * d, d, 2)

    def _generate_anchors(self, spatial_shapes, grid_size=0.05):
        anchors = []
        for lvl, (h, w) in enumerate(spatial_shapes):
            grid_y, grid_x = torch.meshgrid(torch.arange(h).float(), torch.arange(w).float(), indexing="ij")
            grid_xy = (torch.stack([grid_x, grid_y], -1).unsqueeze(0) + 0.5) / torch.tensor([w, h]).float()
            wh = torch.ones_like(grid_xy) * grid_size * (2.0**lvl)
            anchors.append(torch.concat([grid_xy, wh], -1).reshape(-1, h * w, 4))
        anchors = torch.concat(anchors, 1)
        valid_mask = ((anchors > 0.06) * (anchors < 1 - 0.06)).all(-1, keepdim=True)
        anchors = torch.log(anchors / (1 - anchors))
        return torch.where(valid_mask, anchors, torch.tensor(torch.inf)), valid_mask

    def forward(self, images):
        c3 = self.stem(images)
        c4 = self.res4(c3)
        c5 = self.res5(c4)
        p3, p4, p5 = [proj(f) for proj, f in zip(self.input_proj, (c3, c4, c5))]
        inner_outs = [self.aifi(p5)]
        for i, feat_low in enumerate((p4, p3)):
            feat_high = self.lateral_convs[i](inner_outs[0])
            inner_outs[0] = feat_high
            upsample_feat = F.interpolate(feat_high, size=feat_low.shape[-2:], mode="nearest")
            inner_outs.insert(0, self.fpn_blocks[i](torch.concat([upsample_feat, feat_low], dim=1)))
        shapes = [list(f.shape[-2:]) for f in inner_outs]
        memory = torch.concat([f.flatten(2).permute(0, 2, 1) for f in inner_outs], 1)
        anchors, valid_mask = self._generate_anchors(shapes)
        anchors, valid_mask = anchors.to(memory), valid_mask.to(memory.device)
        output_memory = self.enc_output(valid_mask.to(memory.dtype) * memory)
        enc_class = self.enc_score_head(output_memory)
        enc_coord_unact = self.enc_bbox_head(output_memory) + anchors
        _, topk_ind = torch.topk(enc_class.max(-1).values, self.num_queries, dim=1)
        ref_unact = enc_coord_unact.gather(dim=1, index=topk_ind.unsqueeze(-1).repeat(1, 1, 4))
        enc_boxes = F.sigmoid(ref_unact)
        enc_logits = enc_class.gather(dim=1, index=topk_ind.unsqueeze(-1).repeat(1, 1, self.num_classes))
        output = output_memory.gather(dim=1, index=topk_ind.unsqueeze(-1).repeat(1, 1, memory.shape[-1])).detach()
        ref_points_detach = F.sigmoid(ref_unact.detach())
        dec_bboxes, dec_logits, ref_points = [], [], None
        for i, layer in enumerate(self.decoder):
            query_pos = self.query_pos_head(ref_points_detach)
            output = layer(output, ref_points_detach.unsqueeze(2), memory, shapes, query_pos)
            inter = F.sigmoid(self.dec_bbox_head[i](output) + inverse_sigmoid(ref_points_detach))
            dec_logits.append(self.dec_score_head[i](output))
            if i == 0:
                dec_bboxes.append(inter)
            else:
                dec_bboxes.append(F.sigmoid(self.dec_bbox_head[i](output) + inverse_sigmoid(ref_points)))
            ref_points, ref_points_detach = inter, inter.detach()
        out = {"pred_logits": dec_logits[-1], "pred_boxes": dec_bboxes[-1]}
        out["aux_outputs"] = [{"pred_logits": a, "pred_boxes": b} for a, b in zip(dec_logits[:-1], dec_bboxes[:-1])]
        out["aux_outputs"].append({"pred_logits": enc_logits, "pred_boxes": enc_boxes})
        return out


def get_inputs():
    return [torch.rand(2, 3, 144, 176)]


def get_init_inputs():
    return [20, 96, 4, 3, 4, 3, 50]
