import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class PositionEmbeddingSine(nn.Module):
    def __init__(self, num_pos_feats=64, temperature=10000, normalize=True):
        super().__init__()
        self.num_pos_feats = num_pos_feats
        self.temperature = temperature
        self.normalize = normalize
        self.scale = 2 * math.pi

    def forward(self, x):
        not_mask = torch.ones((x.size(0), x.size(2), x.size(3)), device=x.device, dtype=torch.bool)
        y_embed = not_mask.cumsum(1, dtype=torch.float32)
        x_embed = not_mask.cumsum(2, dtype=torch.float32)
        if self.normalize:
            eps = 1e-6
            y_embed = y_embed / (y_embed[:, -1:, :] + eps) * self.scale
            x_embed = x_embed / (x_embed[:, :, -1:] + eps) * self.scale
        dim_t = torch.arange(self.num_pos_feats, dtype=torch.float32, device=x.device)
        dim_t = self.temperature ** (2 * torch.div(dim_t, 2, rounding_mode="floor") / self.num_pos_feats)
        pos_x = x_embed[:, :, :, None] / dim_t
        pos_y = y_embed[:, :, :, None] / dim_t
        pos_x = torch.stack((pos_x[:, :, :, 0::2].sin(), pos_x[:, :, :, 1::2].cos()), dim=4).flatten(3)
        pos_y = torch.stack((pos_y[:, :, :, 0::2].sin(), pos_y[:, :, :, 1::2].cos()), dim=4).flatten(3)
        return torch.cat((pos_y, pos_x), dim=3).permute(0, 3, 1, 2)


def ms_deform_attn_core_pytorch(value, value_spatial_shapes, sampling_locations, attention_weights):
    N_, S_, M_, D_ = value.shape
    _, Lq_, M_, L_, P_, _ = sampling_locations.shape
    value_list = value.split([H_ * W_ for H_, W_ in value_spatial_shapes], dim=1)
    sampling_grids = 2 * sampling_locations - 1
    sampling_value_list = []
    for lid_, (H_, W_) in enumerate(value_spatial_shapes):
        value_l_ = value_list[lid_].flatten(2).transpose(1, 2).reshape(N_ * M_, D_, H_, W_)
        sampling_grid_l_ = sampling_grids[:, :, :, lid_].transpose(1, 2).flatten(0, 1)
        sampling_value_l_ = F.grid_sample(value_l_, sampling_grid_l_, mode="bilinear", padding_mode="zeros",
                                          align_corners=False)
        sampling_value_list.append(sampling_value_l_)
    attention_weights = attention_weights.transpose(1, 2).reshape(N_ * M_, 1, Lq_, L_ * P_)
    output = (torch.stack(sampling_value_list, dim=-2).flatten(-2) * attention_weights).sum(-1).view(N_, M_ * D_, Lq_)
    return output.transpose(1, 2).contiguous()


class MSDeformAttn(nn.Module):
    def __init__(self, d_model=256, n_levels=3, n_heads=8, n_points=4):
        super().__init__()
        self.d_model, self.n_levels, self.n_heads, self.n_points = d_model, n_levels, n_heads, n_points
        self.sampling_offsets = nn.Linear(d_model, n_heads * n_levels * n_points * 2)
        self.attention_weights = nn.Linear(d_model, n_heads * n_levels * n_points)
        self.value_proj = nn.Linear(d_model, d_model)
        self.output_proj = nn.Linear(d_model, d_model)
        thetas = torch.arange(n_heads, dtype=torch.float32) * (2.0 * math.pi / n_heads)
        grid_init = torch.stack([thetas.cos(), thetas.sin()], -1)
        grid_init = (grid_init / grid_init.abs().max(-1, keepdim=True)[0]).view(n_heads, 1, 1, 2)
        grid_init = grid_init.repeat(1, n_levels, n_points, 1)
        for i in range(n_points):
            grid_init[:, :, i, :] *= i + 1
        with torch.no_grad():
            self.sampling_offsets.weight.mul_(0.05)
            self.sampling_offsets.bias.copy_(grid_init.view(-1))

    def forward(self, query, reference_points, input_flatten, spatial_shapes):
        N, Len_q, _ = query.shape
        N, Len_in, _ = input_flatten.shape
        value = self.value_proj(input_flatten)
        value = value.view(N, Len_in, self.n_heads, self.d_model // self.n_heads)
        offsets = self.sampling_offsets(query).view(N, Len_q, self.n_heads, self.n_levels, self.n_points, 2)
        weights = self.attention_weights(query).view(N, Len_q, self.n_heads, self.n_levels * self.n_points)
        weights = F.softmax(weights, -1).view(N, Len_q, self.n_heads, self.n_levels, self.n_points)
        normalizer = torch.tensor([[w, h] for h, w in spatial_shapes], dtype=query.dtype, device=query.device)
        locations = reference_points[:, :, None, :, None, :] + offsets / normalizer[None, None, None, :, None, :]
        output = ms_deform_attn_core_pytorch(value, spatial_shapes, locations, weights)
        return self.output_proj(output)


class DeformEncoderLayer(nn.Module):
    def __init__(self, d_model=256, d_ffn=1024, n_levels=3, n_heads=8, n_points=4):
        super().__init__()
        self.self_attn = MSDeformAttn(d_model, n_levels, n_heads, n_points)
        self.norm1 = nn.LayerNorm(d_model)
        self.linear1 = nn.Linear(d_model, d_ffn)
        self.linear2 = nn.Linear(d_ffn, d_model)
        self.norm2 = nn.LayerNorm(d_model)

    def forward(self, src, pos, reference_points, spatial_shapes):
        src2 = self.self_attn(src + pos, reference_points, src, spatial_shapes)
        src = self.norm1(src + src2)
        src2 = self.linear2(F.relu(self.linear1(src)))
        return self.norm2(src + src2)


class PixelDecoder(nn.Module):
    def __init__(self, in_channels, conv_dim=256, num_layers=2):
        super().__init__()
        self.input_proj = nn.ModuleList([
            nn.Sequential(nn.Conv2d(c, conv_dim, kernel_size=1), nn.GroupNorm(32, conv_dim))
            for c in in_channels[1:][::-1]
        ])
        self.pe_layer = PositionEmbeddingSine(conv_dim // 2)
        self.level_embed = nn.Parameter(torch.randn(3, conv_dim))
        self.layers = nn.ModuleList([DeformEncoderLayer(conv_dim) for _ in range(num_layers)])
        self.lateral = nn.Sequential(nn.Conv2d(in_channels[0], conv_dim, 1, bias=False), nn.GroupNorm(32, conv_dim))
        self.output = nn.Sequential(nn.Conv2d(conv_dim, conv_dim, 3, padding=1, bias=False),
                                    nn.GroupNorm(32, conv_dim), nn.ReLU())
        self.mask_features = nn.Conv2d(conv_dim, conv_dim, kernel_size=1)

    @staticmethod
    def get_reference_points(spatial_shapes, device):
        reference_points_list = []
        for H_, W_ in spatial_shapes:
            ref_y, ref_x = torch.meshgrid(
                torch.linspace(0.5, H_ - 0.5, H_, dtype=torch.float32, device=device),
                torch.linspace(0.5, W_ - 0.5, W_, dtype=torch.float32, device=device), indexing="ij")
            ref = torch.stack((ref_x.reshape(-1)[None] / W_, ref_y.reshape(-1)[None] / H_), -1)
            reference_points_list.append(ref)
        reference_points = torch.cat(reference_points_list, 1)
        return reference_points[:, :, None].repeat(1, 1, len(spatial_shapes), 1)

    def forward(self, features):
        srcs, pos = [], []
        for idx, x in enumerate(features[1:][::-1]):
            srcs.append(self.input_proj[idx](x))
            pos.append(self.pe_layer(x))
        spatial_shapes = [(s.shape[2], s.shape[3]) for s in srcs]
        src_flatten = torch.cat([s.flatten(2).transpose(1, 2) for s in srcs], 1)
        pos_flatten = torch.cat(
            [p.flatten(2).transpose(1, 2) + self.level_embed[i].view(1, 1, -1) for i, p in enumerate(pos)], 1)
        ref = self.get_reference_points(spatial_shapes, src_flatten.device)
        y = src_flatten
        for layer in self.layers:
            y = layer(y, pos_flatten, ref, spatial_shapes)
        bs = y.shape[0]
        y = torch.split(y, [h * w for h, w in spatial_shapes], dim=1)
        out = [z.transpose(1, 2).view(bs, -1, spatial_shapes[i][0], spatial_shapes[i][1]) for i, z in enumerate(y)]
        cur_fpn = self.lateral(features[0])
        fpn = cur_fpn + F.interpolate(out[-1], size=cur_fpn.shape[-2:], mode="bilinear", align_corners=False)
        return self.mask_features(self.output(fpn)), out


class MLP(nn.Module):
    def __init__(self, input_dim, hidden_dim, output_dim, num_layers):
        super().__init__()
        self.num_layers = num_layers
        h = [hidden_dim] * (num_layers - 1)
        self.layers = nn.ModuleList(nn.Linear(n, k) for n, k in zip([input_dim] + h, h + [output_dim]))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(x)) if i < self.num_layers - 1 else layer(x)
        return x


class MaskedDecoderLayer(nn.Module):
    def __init__(self, d_model=256, nhead=8, dim_feedforward=2048):
        super().__init__()
        self.cross_attn = nn.MultiheadAttention(d_model, nhead)
        self.norm1 = nn.LayerNorm(d_model)
        self.self_attn = nn.MultiheadAttention(d_model, nhead)
        self.norm2 = nn.LayerNorm(d_model)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm3 = nn.LayerNorm(d_model)

    def forward(self, tgt, memory, attn_mask, pos, query_pos):
        tgt2 = self.cross_attn(query=tgt + query_pos, key=memory + pos, value=memory, attn_mask=attn_mask)[0]
        tgt = self.norm1(tgt + tgt2)
        q = k = tgt + query_pos
        tgt2 = self.self_attn(q, k, value=tgt)[0]
        tgt = self.norm2(tgt + tgt2)
        tgt2 = self.linear2(F.relu(self.linear1(tgt)))
        return self.norm3(tgt + tgt2)


class Model(nn.Module):
    """Mask2Former head: multi-scale deformable pixel decoder plus masked-attention transformer decoder."""

    def __init__(self, in_channels, hidden_dim, num_queries, num_classes, enc_layers, dec_layers, nheads):
        super().__init__()
        self.num_heads = nheads
        self.num_layers = dec_layers
        self.pixel_decoder = PixelDecoder(in_channels, hidden_dim, enc_layers)
        self.pe_layer = PositionEmbeddingSine(hidden_dim // 2)
        self.layers = nn.ModuleList([MaskedDecoderLayer(hidden_dim, nheads) for _ in range(dec_layers)])
        self.decoder_norm = nn.LayerNorm(hidden_dim)
        self.query_feat = nn.Embedding(num_queries, hidden_dim)
        self.query_embed = nn.Embedding(num_queries, hidden_dim)
        self.level_embed = nn.Embedding(3, hidden_dim)
        self.class_embed = nn.Linear(hidden_dim, num_classes + 1)
        self.mask_embed = MLP(hidden_dim, hidden_dim, hidden_dim, 3)

    def forward_prediction_heads(self, output, mask_features, attn_mask_target_size):
        decoder_output = self.decoder_norm(output).transpose(0, 1)
        outputs_class = self.class_embed(decoder_output)
        mask_embed = self.mask_embed(decoder_output)
        outputs_mask = torch.einsum("bqc,bchw->bqhw", mask_embed, mask_features)
        attn_mask = F.interpolate(outputs_mask, size=attn_mask_target_size, mode="bilinear", align_corners=False)
        attn_mask = (attn_mask.sigmoid().flatten(2).unsqueeze(1).repeat(1, self.num_heads, 1, 1).flatten(0, 1)
                     < 0.5).bool()
        attn_mask = attn_mask.detach()
        return outputs_class, outputs_mask, attn_mask

    def forward(self, res2, res3, res4, res5):
        mask_features, x = self.pixel_decoder([res2, res3, res4, res5])
        src, pos, size_list = [], [], []
        for i in range(3):
            size_list.append(x[i].shape[-2:])
            pos.append(self.pe_layer(x[i]).flatten(2).permute(2, 0, 1))
            s = x[i].flatten(2) + self.level_embed.weight[i][None, :, None]
            src.append(s.permute(2, 0, 1))
        bs = src[0].shape[1]
        query_embed = self.query_embed.weight.unsqueeze(1).repeat(1, bs, 1)
        output = self.query_feat.weight.unsqueeze(1).repeat(1, bs, 1)
        predictions_class, predictions_mask = [], []
        c, m, attn_mask = self.forward_prediction_heads(output, mask_features, size_list[0])
        predictions_class.append(c)
        predictions_mask.append(m)
        for i in range(self.num_layers):
            level_index = i % 3
            # a query whose mask is empty attends everywhere
            attn_mask = attn_mask & ~attn_mask.all(dim=-1, keepdim=True)
            output = self.layers[i](output, src[level_index], attn_mask, pos[level_index], query_embed)
            c, m, attn_mask = self.forward_prediction_heads(output, mask_features, size_list[(i + 1) % 3])
            predictions_class.append(c)
            predictions_mask.append(m)
        return torch.stack(predictions_class), predictions_mask[-1], torch.stack(predictions_mask[:-1]).mean((-2, -1))


batch_size = 4


def get_inputs():
    return [
        torch.randn(batch_size, 256, 128, 128),
        torch.randn(batch_size, 512, 64, 64),
        torch.randn(batch_size, 1024, 32, 32),
        torch.randn(batch_size, 2048, 16, 16),
    ]


def get_init_inputs():
    return [[256, 512, 1024, 2048], 256, 100, 80, 2, 3, 8]
