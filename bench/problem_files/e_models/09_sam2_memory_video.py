import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def init_t_xy(end_x, end_y, device=None):
    t = torch.arange(end_x * end_y, dtype=torch.float32, device=device)
    t_x = (t % end_x).float()
    t_y = torch.div(t, end_x, rounding_mode="floor").float()
    return t_x, t_y


def compute_axial_cis(dim, end_x, end_y, theta=10000.0):
    freqs_x = 1.0 / (theta ** (torch.arange(0, dim, 4)[: (dim // 4)].float() / dim))
    freqs_y = 1.0 / (theta ** (torch.arange(0, dim, 4)[: (dim // 4)].float() / dim))
    t_x, t_y = init_t_xy(end_x, end_y)
    freqs_x = torch.outer(t_x, freqs_x)
    freqs_y = torch.outer(t_y, freqs_y)
    freqs_cis_x = torch.polar(torch.ones_like(freqs_x), freqs_x)
    freqs_cis_y = torch.polar(torch.ones_like(freqs_y), freqs_y)
    return torch.cat([freqs_cis_x, freqs_cis_y], dim=-1)


def reshape_for_broadcast(freqs_cis, x):
    ndim = x.ndim
    shape = [d if i >= ndim - 2 else 1 for i, d in enumerate(x.shape)]
    return freqs_cis.view(*shape)


def apply_rotary_enc(xq, xk, freqs_cis, repeat_freqs_k=False):
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2)) if xk.shape[-2] != 0 else None
    freqs_cis = reshape_for_broadcast(freqs_cis, xq_)
    xq_out = torch.view_as_real(xq_ * freqs_cis).flatten(3)
    if xk_ is None:
        return xq_out.type_as(xq), xk
    if repeat_freqs_k:
        r = xk_.shape[-2] // xq_.shape[-2]
        freqs_cis = freqs_cis.repeat(*([1] * (freqs_cis.ndim - 2)), r, 1)
    xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)


class LayerNorm2d(nn.Module):
    def __init__(self, num_channels, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))
        self.eps = eps

    def forward(self, x):
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class MLP(nn.Module):
    def __init__(self, input_dim, hidden_dim, output_dim, num_layers, sigmoid_output=False):
        super().__init__()
        self.num_layers = num_layers
        h = [hidden_dim] * (num_layers - 1)
        self.layers = nn.ModuleList(nn.Linear(n, k) for n, k in zip([input_dim] + h, h + [output_dim]))
        self.sigmoid_output = sigmoid_output

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(x)) if i < self.num_layers - 1 else layer(x)
        return F.sigmoid(x) if self.sigmoid_output else x


class Attention(nn.Module):
    def __init__(self, embedding_dim, num_heads, downsample_rate=1, kv_in_dim=None):
        super().__init__()
        self.kv_in_dim = kv_in_dim if kv_in_dim is not None else embedding_dim
        self.internal_dim = embedding_dim // downsample_rate
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embedding_dim, self.internal_dim)
        self.k_proj = nn.Linear(self.kv_in_dim, self.internal_dim)
        self.v_proj = nn.Linear(self.kv_in_dim, self.internal_dim)
        self.out_proj = nn.Linear(self.internal_dim, embedding_dim)

    def _separate_heads(self, x, num_heads):
        b, n, c = x.shape
        return x.reshape(b, n, num_heads, c // num_heads).transpose(1, 2)

    def _recombine_heads(self, x):
        b, n_heads, n_tokens, c_per_head = x.shape
        return x.transpose(1, 2).reshape(b, n_tokens, n_heads * c_per_head)

    def forward(self, q, k, v):
        q, k, v = (self._separate_heads(p(t), self.num_heads) for p, t in ((self.q_proj, q), (self.k_proj, k), (self.v_proj, v)))
        return self.out_proj(self._recombine_heads(F.scaled_dot_product_attention(q, k, v)))


class RoPEAttention(Attention):
    def __init__(self, *args, rope_k_repeat=False, feat_sizes=(10, 12), **kwargs):
        super().__init__(*args, **kwargs)
        cis = compute_axial_cis(self.internal_dim // self.num_heads, end_x=feat_sizes[0], end_y=feat_sizes[1])
        self.register_buffer("freqs_cis", cis, persistent=False)
        self.rope_k_repeat = rope_k_repeat

    def forward(self, q, k, v, num_k_exclude_rope=0):
        q = self._separate_heads(self.q_proj(q), self.num_heads)
        k = self._separate_heads(self.k_proj(k), self.num_heads)
        v = self._separate_heads(self.v_proj(v), self.num_heads)
        if q.shape[-2] != k.shape[-2]:
            assert self.rope_k_repeat
        num_k_rope = k.size(-2) - num_k_exclude_rope
        q, k[:, :, :num_k_rope] = apply_rotary_enc(
            q, k[:, :, :num_k_rope], freqs_cis=self.freqs_cis, repeat_freqs_k=self.rope_k_repeat
        )
        out = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(self._recombine_heads(out))


class MemoryAttentionLayer(nn.Module):
    def __init__(self, d_model, dim_feedforward, kv_in_dim, feat_sizes):
        super().__init__()
        self.self_attn = RoPEAttention(d_model, 1, feat_sizes=feat_sizes)
        self.cross_attn_image = RoPEAttention(d_model, 1, kv_in_dim=kv_in_dim, rope_k_repeat=True, feat_sizes=feat_sizes)
        self.linear1, self.linear2 = nn.Linear(d_model, dim_feedforward), nn.Linear(dim_feedforward, d_model)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(d_model), nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, tgt, memory, pos=None, num_k_exclude_rope=0):
        tgt2 = self.norm1(tgt)
        tgt = tgt + self.self_attn(tgt2, tgt2, v=tgt2)
        tgt2 = self.norm2(tgt)
        tgt2 = self.cross_attn_image(q=tgt2, k=memory + pos, v=memory, num_k_exclude_rope=num_k_exclude_rope)
        tgt = tgt + tgt2
        tgt2 = self.norm3(tgt)
        return tgt + self.linear2(F.gelu(self.linear1(tgt2)))


class CXBlock(nn.Module):
    def __init__(self, dim, kernel_size=7, padding=3, layer_scale_init_value=0.2):
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, kernel_size=kernel_size, padding=padding, groups=dim)
        self.norm = LayerNorm2d(dim)
        self.pwconv1, self.act, self.pwconv2 = nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(layer_scale_init_value * torch.ones(dim))

    def forward(self, x):
        input = x
        x = self.norm(self.dwconv(x))
        x = x.permute(0, 2, 3, 1)
        x = self.gamma * self.pwconv2(self.act(self.pwconv1(x)))
        return input + x.permute(0, 3, 1, 2)


class MaskDownSampler(nn.Module):
    def __init__(self, embed_dim, total_stride=4):
        super().__init__()
        self.encoder = nn.Sequential()
        mask_in, mask_out = 1, 1
        for _ in range(int(math.log2(total_stride))):
            mask_out = mask_in * 4
            self.encoder.append(nn.Conv2d(mask_in, mask_out, 3, stride=2, padding=1))
            self.encoder.append(LayerNorm2d(mask_out))
            self.encoder.append(nn.GELU())
            mask_in = mask_out
        self.encoder.append(nn.Conv2d(mask_out, embed_dim, kernel_size=1))

    def forward(self, x):
        return self.encoder(x)


class PositionEmbeddingSine(nn.Module):
    def __init__(self, num_pos_feats, temperature=10000):
        super().__init__()
        self.num_pos_feats, self.temperature, self.scale = num_pos_feats // 2, temperature, 2 * math.pi

    @torch.no_grad()
    def forward(self, x):
        b, _, h, w = x.shape
        y_embed = torch.arange(1, h + 1, dtype=torch.float32, device=x.device).view(1, -1, 1).repeat(b, 1, w)
        x_embed = torch.arange(1, w + 1, dtype=torch.float32, device=x.device).view(1, 1, -1).repeat(b, h, 1)
        y_embed = y_embed / (y_embed[:, -1:, :] + 1e-6) * self.scale
        x_embed = x_embed / (x_embed[:, :, -1:] + 1e-6) * self.scale
        dim_t = torch.arange(self.num_pos_feats, dtype=torch.float32, device=x.device)
        dim_t = self.temperature ** (2 * (dim_t // 2) / self.num_pos_feats)
        pos_x, pos_y = x_embed[:, :, :, None] / dim_t, y_embed[:, :, :, None] / dim_t
        pos_x = torch.stack((pos_x[..., 0::2].sin(), pos_x[..., 1::2].cos()), dim=4).flatten(3)
        pos_y = torch.stack((pos_y[..., 0::2].sin(), pos_y[..., 1::2].cos()), dim=4).flatten(3)
        return torch.cat((pos_y, pos_x), dim=3).permute(0, 3, 1, 2)


class MemoryEncoder(nn.Module):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.mask_downsampler = MaskDownSampler(in_dim)
        self.pix_feat_proj = nn.Conv2d(in_dim, in_dim, kernel_size=1)
        self.fuser = nn.ModuleList([CXBlock(in_dim) for _ in range(2)])
        self.position_encoding = PositionEmbeddingSine(out_dim)
        self.out_proj = nn.Conv2d(in_dim, out_dim, kernel_size=1)

    def forward(self, pix_feat, masks):
        x = self.pix_feat_proj(pix_feat) + self.mask_downsampler(masks)
        for layer in self.fuser:
            x = layer(x)
        x = self.out_proj(x)
        return {"vision_features": x, "vision_pos_enc": [self.position_encoding(x).to(x.dtype)]}


class MaskDecoder(nn.Module):
    def __init__(self, dim, num_mask_tokens=3):
        super().__init__()
        self.num_mask_tokens = num_mask_tokens
        self.iou_token = nn.Embedding(1, dim)
        self.mask_tokens = nn.Embedding(num_mask_tokens, dim)
        self.token_to_image, self.image_to_token = Attention(dim, 4, 2), Attention(dim, 4, 2)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.output_upscaling = nn.Sequential(
            nn.ConvTranspose2d(dim, dim // 4, 2, 2), LayerNorm2d(dim // 4), nn.GELU(),
            nn.ConvTranspose2d(dim // 4, dim // 8, 2, 2), nn.GELU(),
        )
        self.output_hypernetworks_mlps = nn.ModuleList([MLP(dim, dim, dim // 8, 3) for _ in range(num_mask_tokens)])
        self.iou_prediction_head = MLP(dim, dim, num_mask_tokens, 3, sigmoid_output=True)

    def forward(self, image_embeddings):
        b, c, h, w = image_embeddings.shape
        tokens = torch.cat([self.iou_token.weight, self.mask_tokens.weight], dim=0).unsqueeze(0).expand(b, -1, -1)
        keys = image_embeddings.flatten(2).permute(0, 2, 1)
        tokens = self.norm1(tokens + self.token_to_image(q=tokens, k=keys, v=keys))
        keys = self.norm2(keys + self.image_to_token(q=keys, k=tokens, v=tokens))
        iou_token_out = tokens[:, 0, :]
        mask_tokens_out = tokens[:, 1 : (1 + self.num_mask_tokens), :]
        upscaled = self.output_upscaling(keys.transpose(1, 2).view(b, c, h, w))
        hyper_in = torch.stack([m(mask_tokens_out[:, i, :]) for i, m in enumerate(self.output_hypernetworks_mlps)], dim=1)
        b, c, h, w = upscaled.shape
        masks = (hyper_in @ upscaled.view(b, c, h * w)).view(b, -1, h, w)
        return masks, self.iou_prediction_head(iou_token_out), mask_tokens_out


def get_1d_sine_pe(pos_inds, dim, temperature=10000):
    pe_dim = dim // 2
    dim_t = torch.arange(pe_dim, dtype=torch.float32, device=pos_inds.device)
    dim_t = temperature ** (2 * (dim_t // 2) / pe_dim)
    pos_embed = pos_inds.unsqueeze(-1) / dim_t
    return torch.cat([pos_embed.sin(), pos_embed.cos()], dim=-1)


class Model(nn.Module):
    """SAM-2-like video segmentation: memory attention with axial rotary keys over past frames and object pointers, then mask decoding and memory encoding."""

    def __init__(self, dim, mem_dim, num_maskmem, layers, feat_hw):
        super().__init__()
        self.hidden_dim, self.mem_dim, self.num_maskmem = dim, mem_dim, num_maskmem
        self.backbone = nn.Sequential(
            nn.Conv2d(3, dim // 2, 7, stride=4, padding=3), LayerNorm2d(dim // 2), CXBlock(dim // 2),
            nn.Conv2d(dim // 2, dim, 2, stride=2), CXBlock(dim),
        )
        fs = (feat_hw[1], feat_hw[0])
        self.memory_attention = nn.ModuleList([MemoryAttentionLayer(dim, 3 * dim, mem_dim, fs) for _ in range(layers)])
        self.memory_attention_norm = nn.LayerNorm(dim)
        self.pos_enc = PositionEmbeddingSine(dim)
        self.memory_encoder = MemoryEncoder(dim, mem_dim)
        self.maskmem_tpos_enc = nn.Parameter(torch.randn(num_maskmem, 1, 1, mem_dim) * 0.02)
        self.no_mem_embed = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.sam_mask_decoder = MaskDecoder(dim)
        self.obj_ptr_proj = MLP(dim, dim, dim, 3)
        self.obj_ptr_tpos_proj = nn.Linear(dim, mem_dim)
        self.sigmoid_scale_for_mem_enc, self.sigmoid_bias_for_mem_enc = 20.0, -10.0

    def _prepare_memory_conditioned_features(self, frame_idx, feat, memory_bank):
        B, C, H, W = feat.shape
        if frame_idx == 0:
            return feat + self.no_mem_embed.permute(0, 2, 1).unsqueeze(-1)
        to_cat_memory, to_cat_memory_pos = [], []
        # the conditioning frame has t_pos = 0, the others count from the nearest
        chosen = [(0, memory_bank[0])]
        for t_pos in range(1, self.num_maskmem):
            prev = frame_idx - (self.num_maskmem - t_pos)
            if prev >= 1:
                chosen.append((t_pos, memory_bank[prev]))
        for t_pos, prev in chosen:
            to_cat_memory.append(prev["maskmem_features"].flatten(2).permute(2, 0, 1))
            enc = prev["maskmem_pos_enc"][-1].flatten(2).permute(2, 0, 1)
            to_cat_memory_pos.append(enc + self.maskmem_tpos_enc[self.num_maskmem - t_pos - 1])
        pos_list = list(range(frame_idx, 0, -1))
        obj_ptrs = torch.stack([m["obj_ptr"] for m in memory_bank[:frame_idx]], dim=0)
        obj_pos = get_1d_sine_pe(torch.tensor(pos_list, device=feat.device, dtype=torch.float32) / 15.0, dim=C)
        obj_pos = self.obj_ptr_tpos_proj(obj_pos).unsqueeze(1).expand(-1, B, self.mem_dim)
        obj_ptrs = obj_ptrs.reshape(-1, B, C // self.mem_dim, self.mem_dim).permute(0, 2, 1, 3).flatten(0, 1)
        obj_pos = obj_pos.repeat_interleave(C // self.mem_dim, dim=0)
        to_cat_memory.append(obj_ptrs)
        to_cat_memory_pos.append(obj_pos)
        memory = torch.cat(to_cat_memory, dim=0).transpose(0, 1)
        memory_pos = torch.cat(to_cat_memory_pos, dim=0).transpose(0, 1)
        output = feat.flatten(2).permute(0, 2, 1)
        output = output + 0.1 * self.pos_enc(feat).flatten(2).permute(0, 2, 1)
        for layer in self.memory_attention:
            output = layer(output, memory, pos=memory_pos, num_k_exclude_rope=obj_ptrs.shape[0])
        return self.memory_attention_norm(output).permute(0, 2, 1).view(B, C, H, W)

    def _encode_new_memory(self, feat, masks_high_res, is_mask_from_pts):
        mask_for_mem = (masks_high_res > 0).float() if is_mask_from_pts else torch.sigmoid(masks_high_res)
        mask_for_mem = mask_for_mem * self.sigmoid_scale_for_mem_enc + self.sigmoid_bias_for_mem_enc
        return self.memory_encoder(feat, mask_for_mem)

    def forward(self, frames, first_mask):
        n_obj = first_mask.shape[0]
        feats = self.backbone(frames)
        memory_bank, all_masks, all_ious = [], [], []
        for t in range(frames.shape[0]):
            feat = feats[t : t + 1].expand(n_obj, -1, -1, -1)
            pix = self._prepare_memory_conditioned_features(t, feat, memory_bank)
            masks, ious, tokens = self.sam_mask_decoder(pix)
            best = torch.argmax(ious, dim=-1)
            batch_inds = torch.arange(n_obj, device=ious.device)
            low_res = masks[batch_inds, best].unsqueeze(1)
            obj_ptr = self.obj_ptr_proj(tokens[batch_inds, best])
            if t == 0:
                low_res = first_mask.float() * 20.0 - 10.0  # the given mask is taken as the output
            mem = self._encode_new_memory(feat, low_res, is_mask_from_pts=(t == 0))
            memory_bank.append(dict(maskmem_features=mem["vision_features"], maskmem_pos_enc=mem["vision_pos_enc"], obj_ptr=obj_ptr))
            all_masks.append(low_res)
            all_ious.append(ious)
        return {"pred_masks": torch.stack(all_masks, 1), "ious": torch.stack(all_ious, 1), "obj_ptr": memory_bank[-1]["obj_ptr"]}


def get_inputs():
    return [torch.randn(4, 3, 96, 80), (torch.rand(2, 1, 48, 40) > 0.6)]


def get_init_inputs():
    return [96, 32, 3, 2, (12, 10)]
