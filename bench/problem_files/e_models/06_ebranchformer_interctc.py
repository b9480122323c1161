import math

import torch
import torch.nn.functional as F
from torch import nn


class RelPositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=512):
        super().__init__()
        self.d_model = d_model
        self.xscale = math.sqrt(d_model)
        pe_positive = torch.zeros(max_len, d_model)
        pe_negative = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len, dtype=torch.float32).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float32) * -(math.log(10000.0) / d_model))
        pe_positive[:, 0::2] = torch.sin(position * div_term)
        pe_positive[:, 1::2] = torch.cos(position * div_term)
        pe_negative[:, 0::2] = torch.sin(-1 * position * div_term)
        pe_negative[:, 1::2] = torch.cos(-1 * position * div_term)
        pe_positive = torch.flip(pe_positive, [0]).unsqueeze(0)
        pe_negative = pe_negative[1:].unsqueeze(0)
        self.register_buffer("pe", torch.cat([pe_positive, pe_negative], dim=1), persistent=False)

    def forward(self, x):
        x = x * self.xscale
        pos_emb = self.pe[:, self.pe.size(1) // 2 - x.size(1) + 1 : self.pe.size(1) // 2 + x.size(1)]
        return x, pos_emb


class RelPositionMultiHeadedAttention(nn.Module):
    def __init__(self, n_head, n_feat):
        super().__init__()
        self.d_k, self.h = n_feat // n_head, n_head
        self.linear_q, self.linear_k = nn.Linear(n_feat, n_feat), nn.Linear(n_feat, n_feat)
        self.linear_v, self.linear_out = nn.Linear(n_feat, n_feat), nn.Linear(n_feat, n_feat)
        self.linear_pos = nn.Linear(n_feat, n_feat, bias=False)
        self.pos_bias_u = nn.Parameter(torch.Tensor(self.h, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.Tensor(self.h, self.d_k))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)

    def rel_shift(self, x):
        zero_pad = torch.zeros((*x.size()[:3], 1), device=x.device, dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=-1)
        x_padded = x_padded.view(*x.size()[:2], x.size(3) + 1, x.size(2))
        return x_padded[:, :, 1:].view_as(x)[:, :, :, : x.size(-1) // 2 + 1]

    def forward(self, query, key, value, pos_emb, mask):
        n_batch = query.size(0)
        q = self.linear_q(query).view(n_batch, -1, self.h, self.d_k)
        k = self.linear_k(key).view(n_batch, -1, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(value).view(n_batch, -1, self.h, self.d_k).transpose(1, 2)
        p = self.linear_pos(pos_emb).view(pos_emb.size(0), -1, self.h, self.d_k).transpose(1, 2)
        q_with_bias_u = (q + self.pos_bias_u).transpose(1, 2)
        q_with_bias_v = (q + self.pos_bias_v).transpose(1, 2)
        matrix_ac = torch.matmul(q_with_bias_u, k.transpose(-2, -1))
        matrix_bd = self.rel_shift(torch.matmul(q_with_bias_v, p.transpose(-2, -1)))
        scores = (matrix_ac + matrix_bd) / math.sqrt(self.d_k)
        mask = mask.unsqueeze(1).eq(0)
        scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
        attn = torch.softmax(scores, dim=-1).masked_fill(mask, 0.0)
        x = torch.matmul(attn, v).transpose(1, 2).contiguous().view(n_batch, -1, self.h * self.d_k)
        return self.linear_out(x)


class ConvolutionalSpatialGatingUnit(nn.Module):
    def __init__(self, size, kernel_size, use_linear_after_conv):
        super().__init__()
        n_channels = size // 2
        self.norm = nn.LayerNorm(n_channels)
        self.conv = nn.Conv1d(n_channels, n_channels, kernel_size, 1, (kernel_size - 1) // 2, groups=n_channels)
        nn.init.normal_(self.conv.weight, std=0.1)
        nn.init.ones_(self.conv.bias)
        self.linear = nn.Linear(n_channels, n_channels) if use_linear_after_conv else None

    def forward(self, x, gate_add=None):
        x_r, x_g = x.chunk(2, dim=-1)
        x_g = self.norm(x_g)
        x_g = self.conv(x_g.transpose(1, 2)).transpose(1, 2)
        if self.linear is not None:
            x_g = self.linear(x_g)
        if gate_add is not None:
            x_g = x_g + gate_add
        return x_r * x_g


class ConvolutionalGatingMLP(nn.Module):
    def __init__(self, size, linear_units, kernel_size, use_linear_after_conv):
        super().__init__()
        self.channel_proj1 = nn.Sequential(nn.Linear(size, linear_units), nn.GELU())
        self.csgu = ConvolutionalSpatialGatingUnit(linear_units, kernel_size, use_linear_after_conv)
        self.channel_proj2 = nn.Linear(linear_units // 2, size)

    def forward(self, x, mask):
        xs_pad, pos_emb = x if isinstance(x, tuple) else (x, None)
        xs_pad = self.channel_proj2(self.csgu(self.channel_proj1(xs_pad)))
        return (xs_pad, pos_emb) if pos_emb is not None else xs_pad


class PositionwiseFeedForward(nn.Module):
    def __init__(self, idim, hidden_units):
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(idim, hidden_units), nn.Linear(hidden_units, idim)
        self.activation = nn.SiLU()

    def forward(self, x):
        return self.w_2(self.activation(self.w_1(x)))


class EBranchformerEncoderLayer(nn.Module):
    def __init__(self, size, heads, cgmlp_units, cgmlp_kernel, ff_units, merge_conv_kernel):
        super().__init__()
        self.attn = RelPositionMultiHeadedAttention(heads, size)
        self.cgmlp = ConvolutionalGatingMLP(size, cgmlp_units, cgmlp_kernel, use_linear_after_conv=False)
        self.feed_forward, self.feed_forward_macaron = PositionwiseFeedForward(size, ff_units), PositionwiseFeedForward(size, ff_units)
        self.ff_scale = 0.5
        self.norm_ff, self.norm_ff_macaron = nn.LayerNorm(size), nn.LayerNorm(size)
        self.norm_mha, self.norm_mlp, self.norm_final = nn.LayerNorm(size), nn.LayerNorm(size), nn.LayerNorm(size)
        self.depthwise_conv_fusion = nn.Conv1d(
            size * 2, size * 2, merge_conv_kernel, 1, (merge_conv_kernel - 1) // 2, groups=size * 2
        )
        self.merge_proj = nn.Linear(size * 2, size)

    def forward(self, x_input, mask):
        x, pos_emb = x_input
        residual = x
        x = residual + self.ff_scale * self.feed_forward_macaron(self.norm_ff_macaron(x))
        # two branches
        x1, x2 = x, x
        x1 = self.norm_mha(x1)
        x1 = self.attn(x1, x1, x1, pos_emb, mask)
        x2 = self.norm_mlp(x2)
        x2 = self.cgmlp((x2, pos_emb), mask)
        if isinstance(x2, tuple):
            x2 = x2[0]
        # merge
        x_concat = torch.cat([x1, x2], dim=-1)
        x_tmp = self.depthwise_conv_fusion(x_concat.transpose(1, 2)).transpose(1, 2)
        x = x + self.merge_proj(x_concat + x_tmp)
        residual = x
        x = residual + self.ff_scale * self.feed_forward(self.norm_ff(x))
        return (self.norm_final(x), pos_emb), mask


class Conv2dSubsampling(nn.Module):
    def __init__(self, idim, odim, channels):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, channels, 3, 2), nn.ReLU(), nn.Conv2d(channels, channels, 3, 2), nn.ReLU())
        self.out = nn.Linear(channels * (((idim - 1) // 2 - 1) // 2), odim)
        self.pos = RelPositionalEncoding(odim)

    def forward(self, x, x_mask):
        x = self.conv(x.unsqueeze(1))
        b, c, t, f = x.size()
        x = self.pos(self.out(x.transpose(1, 2).contiguous().view(b, t, c * f)))
        return x, x_mask[:, :, :-2:2][:, :, :-2:2]


class UtteranceMVN(nn.Module):
    def __init__(self, eps=1e-20):
        super().__init__()
        self.eps = eps

    def forward(self, x, ilens):
        pad = torch.arange(x.size(1), device=x.device)[None, :] >= ilens[:, None]
        x = x.masked_fill(pad.unsqueeze(-1), 0.0)
        mean = x.sum(dim=1, keepdim=True) / ilens.to(x.dtype).view(-1, 1, 1)
        x = (x - mean).masked_fill(pad.unsqueeze(-1), 0.0)
        var = x.pow(2).sum(dim=1, keepdim=True) / ilens.to(x.dtype).view(-1, 1, 1)
        return x / torch.clamp(var.sqrt(), min=self.eps), ~pad[:, None, :]


class Model(nn.Module):
    """ESPnet-like E-Branchformer with a self-conditioned intermediate CTC loss and the final CTC loss."""

    def __init__(self, idim, size, heads, layers, vocab, interctc_layer_idx):
        super().__init__()
        self.normalize = UtteranceMVN()
        self.embed = Conv2dSubsampling(idim, size, 32)
        self.encoders = nn.ModuleList(
            [EBranchformerEncoderLayer(size, heads, size * 4, 31, size * 3, 3) for _ in range(layers)]
        )
        self.after_norm = nn.LayerNorm(size)
        self.interctc_layer_idx = list(interctc_layer_idx)
        self.ctc_lo = nn.Linear(size, vocab)
        self.conditioning_layer = nn.Linear(vocab, size)
        self.interctc_weight = 0.3

    def _ctc_loss(self, hs, hlens, ys_pad, ys_lens):
        ys_hat = self.ctc_lo(hs).transpose(0, 1).log_softmax(2)
        loss = F.ctc_loss(ys_hat, ys_pad, hlens, ys_lens, blank=0, reduction="none", zero_infinity=True)
        return loss.sum() / ys_hat.size(1)

    def forward(self, speech, speech_lengths, text, text_lengths):
        feats, masks = self.normalize(speech, speech_lengths)
        xs_pad, masks = self.embed(feats, masks)
        intermediate_outs = []
        for layer_idx, encoder_layer in enumerate(self.encoders):
            xs_pad, masks = encoder_layer(xs_pad, masks)
            if layer_idx + 1 in self.interctc_layer_idx:
                encoder_out, pos_emb = xs_pad
                encoder_out = self.after_norm(encoder_out)
                intermediate_outs.append(encoder_out)
                ctc_out = F.softmax(self.ctc_lo(encoder_out), dim=2)
                xs_pad = (xs_pad[0] + self.conditioning_layer(ctc_out), pos_emb)
        encoder_out = self.after_norm(xs_pad[0])
        olens = masks.squeeze(1).sum(1)
        loss_ctc = self._ctc_loss(encoder_out, olens, text, text_lengths)
        loss_interctc = 0.0
        for inter in intermediate_outs:
            loss_interctc = loss_interctc + self._ctc_loss(inter, olens, text, text_lengths)
        loss_interctc = loss_interctc / len(intermediate_outs)
        loss = (1 - self.interctc_weight) * loss_ctc + self.interctc_weight * loss_interctc
        stats = dict(loss_ctc=loss_ctc.detach(), loss_interctc=loss_interctc.detach())
        return loss, stats, self.ctc_lo(encoder_out).argmax(dim=-1)


def get_inputs():
    B, T = 3, 163
    lens = torch.tensor([163, 140, 97])
    text = torch.randint(1, 120, (B, 14))
    return [torch.randn(B, T, 80) * 2.0 + 0.7, lens, text, torch.tensor([14, 11, 8])]


def get_init_inputs():
    return [80, 128, 4, 4, 120, [2]]
