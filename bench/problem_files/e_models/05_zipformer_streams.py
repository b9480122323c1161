import math

import torch
from torch import Tensor, nn


class BiasNorm(nn.Module):
    def __init__(self, num_channels, channel_dim=-1, log_scale=1.0):
        super().__init__()
        self.num_channels, self.channel_dim = num_channels, channel_dim
        self.log_scale = nn.Parameter(torch.tensor(log_scale))
        self.bias = nn.Parameter(torch.randn(num_channels) * 1e-2)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[self.channel_dim] == self.num_channels
        channel_dim = self.channel_dim
        if channel_dim < 0:
            channel_dim += x.ndim
        bias = self.bias
        for _ in range(channel_dim + 1, x.ndim):
            bias = bias.unsqueeze(-1)
        scales = (torch.mean((x - bias) ** 2, dim=channel_dim, keepdim=True) ** -0.5) * self.log_scale.exp()
        return x * scales


class SwooshL(nn.Module):
    def forward(self, x):
        zero = torch.tensor(0.0, dtype=x.dtype, device=x.device)
        return torch.logaddexp(zero, x - 4.0) - 0.08 * x - 0.035


class SwooshR(nn.Module):
    def forward(self, x):
        zero = torch.tensor(0.0, dtype=x.dtype, device=x.device)
        return torch.logaddexp(zero, x - 1.0) - 0.08 * x - 0.313261687


class CompactRelPositionalEncoding(nn.Module):
    def __init__(self, embed_dim, length_factor=1.0):
        super().__init__()
        self.embed_dim, self.length_factor = embed_dim, length_factor

    def forward(self, x, left_context_len=0):
        T = x.size(0) + left_context_len
        pos = torch.arange(-(T - 1), T, device=x.device).to(torch.float32).unsqueeze(1)
        freqs = 1 + torch.arange(self.embed_dim // 2, device=x.device)
        compression_length = self.embed_dim**0.5
        pos_compressed = compression_length * pos.sign() * ((pos.abs() + compression_length).log() - math.log(compression_length))
        length_scale = self.length_factor * self.embed_dim / (2.0 * math.pi)
        x_atan = (pos_compressed / length_scale).atan()
        pe = torch.zeros(pos.shape[0], self.embed_dim, device=x.device)
        pe[:, 0::2] = (x_atan * freqs).cos()
        pe[:, 1::2] = (x_atan * freqs).sin()
        pe[:, -1] = 1.0  # for bias.
        return pe.to(x.dtype).unsqueeze(0)


class RelPositionMultiheadAttentionWeights(nn.Module):
    def __init__(self, embed_dim, pos_dim, num_heads, query_head_dim, pos_head_dim):
        super().__init__()
        self.num_heads, self.query_head_dim, self.pos_head_dim = num_heads, query_head_dim, pos_head_dim
        self.in_proj = nn.Linear(embed_dim, (2 * query_head_dim + pos_head_dim) * num_heads)
        self.linear_pos = nn.Linear(pos_dim, num_heads * pos_head_dim, bias=False)

    def forward(self, x, pos_emb, key_padding_mask=None):
        x = self.in_proj(x)
        seq_len, batch_size, _ = x.shape
        num_heads, query_dim = self.num_heads, self.query_head_dim * self.num_heads
        q = x[..., 0:query_dim]
        k = x[..., query_dim : 2 * query_dim]
        p = x[..., 2 * query_dim :]
        q = q.reshape(seq_len, batch_size, num_heads, self.query_head_dim).permute(2, 1, 0, 3)
        p = p.reshape(seq_len, batch_size, num_heads, self.pos_head_dim).permute(2, 1, 0, 3)
        k = k.reshape(seq_len, batch_size, num_heads, self.query_head_dim).permute(2, 1, 3, 0)
        attn_scores = torch.matmul(q, k)

        pos_emb = self.linear_pos(pos_emb)
        seq_len2 = 2 * seq_len - 1
        pos_emb = pos_emb.reshape(-1, seq_len2, num_heads, self.pos_head_dim).permute(2, 0, 3, 1)
        pos_scores = torch.matmul(p, pos_emb)
        pos_scores = pos_scores.contiguous()
        pos_scores = pos_scores.as_strided(
            (num_heads, batch_size, seq_len, seq_len),
            (pos_scores.stride(0), pos_scores.stride(1), pos_scores.stride(2) - pos_scores.stride(3), pos_scores.stride(3)),
            storage_offset=pos_scores.stride(3) * (seq_len - 1),
        )
        attn_scores = attn_scores + pos_scores
        if key_padding_mask is not None:
            attn_scores = attn_scores.masked_fill(key_padding_mask.unsqueeze(1), -1000)
        return attn_scores.softmax(dim=-1)


class SelfAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, value_head_dim):
        super().__init__()
        self.in_proj = nn.Linear(embed_dim, num_heads * value_head_dim)
        self.out_proj = nn.Linear(num_heads * value_head_dim, embed_dim)

    def forward(self, x, attn_weights):
        seq_len, batch_size, _ = x.shape
        num_heads = attn_weights.shape[0]
        x = self.in_proj(x)
        x = x.reshape(seq_len, batch_size, num_heads, -1).permute(2, 1, 0, 3)
        x = torch.matmul(attn_weights, x)
        x = x.permute(2, 1, 0, 3).contiguous().view(seq_len, batch_size, -1)
        return self.out_proj(x)


class NonlinAttention(nn.Module):
    def __init__(self, channels, hidden_channels):
        super().__init__()
        self.in_proj = nn.Linear(channels, hidden_channels * 3)
        self.out_proj = nn.Linear(hidden_channels, channels)

    def forward(self, x, attn_weights):
        s, x, y = self.in_proj(x).chunk(3, dim=2)
        s = torch.tanh(s)
        x = x * s
        seq_len, batch_size, embed_dim = x.shape
        num_heads = attn_weights.shape[0]
        x = x.reshape(seq_len, batch_size, num_heads, -1).permute(2, 1, 0, 3)
        x = torch.matmul(attn_weights, x)
        x = x.permute(2, 1, 0, 3).reshape(seq_len, batch_size, -1)
        return self.out_proj(x * y)


class ConvolutionModule(nn.Module):
    def __init__(self, channels, kernel_size):
        super().__init__()
        self.in_proj = nn.Linear(channels, 2 * channels)
        self.depthwise_conv = nn.Conv1d(channels, channels, kernel_size, groups=channels, padding=kernel_size // 2)
        self.activation = SwooshR()
        self.out_proj = nn.Linear(channels, channels)

    def forward(self, x, src_key_padding_mask=None):
        x = self.in_proj(x)
        x, s = x.chunk(2, dim=2)
        x = x * s.sigmoid()
        x = x.permute(1, 2, 0)
        if src_key_padding_mask is not None:
            x = x.masked_fill(src_key_padding_mask.unsqueeze(1).expand_as(x), 0.0)
        x = self.depthwise_conv(x).permute(2, 0, 1)
        return self.out_proj(self.activation(x))


def feedforward(dim, hidden):
    return nn.Sequential(nn.Linear(dim, hidden), SwooshL(), nn.Linear(hidden, dim))


class BypassModule(nn.Module):
    def __init__(self, embed_dim, scale_min=0.2, scale_max=1.0):
        super().__init__()
        self.bypass_scale = nn.Parameter(torch.full((embed_dim,), 0.5))
        self.scale_min, self.scale_max = scale_min, scale_max

    def forward(self, src_orig, src):
        bypass_scale = self.bypass_scale.clamp(min=self.scale_min, max=self.scale_max)
        return src_orig + (src - src_orig) * bypass_scale


class Zipformer2EncoderLayer(nn.Module):
    def __init__(self, dim, pos_dim, heads, ff_dim, kernel):
        super().__init__()
        self.bypass, self.bypass_mid = BypassModule(dim), BypassModule(dim)
        self.self_attn_weights = RelPositionMultiheadAttentionWeights(dim, pos_dim, heads, 16, 4)
        self.self_attn1, self.self_attn2 = SelfAttention(dim, heads, 12), SelfAttention(dim, heads, 12)
        self.feed_forward1 = feedforward(dim, (ff_dim * 3) // 4)
        self.feed_forward2 = feedforward(dim, ff_dim)
        self.feed_forward3 = feedforward(dim, (ff_dim * 5) // 4)
        self.nonlin_attention = NonlinAttention(dim, 3 * dim // 4)
        self.conv_module1, self.conv_module2 = ConvolutionModule(dim, kernel), ConvolutionModule(dim, kernel)
        self.norm = BiasNorm(dim)

    def forward(self, src, pos_emb, src_key_padding_mask=None):
        src_orig = src
        attn_weights = self.self_attn_weights(src, pos_emb=pos_emb, key_padding_mask=src_key_padding_mask)
        src = src + self.feed_forward1(src)
        src = src + self.nonlin_attention(src, attn_weights[0:1])
        src = src + self.self_attn1(src, attn_weights)
        src = src + self.conv_module1(src, src_key_padding_mask=src_key_padding_mask)
        src = src + self.feed_forward2(src)
        src = self.bypass_mid(src_orig, src)
        src = src + self.self_attn2(src, attn_weights)
        src = src + self.conv_module2(src, src_key_padding_mask=src_key_padding_mask)
        src = src + self.feed_forward3(src)
        src = self.norm(src)
        return self.bypass(src_orig, src)


class Zipformer2Encoder(nn.Module):
    def __init__(self, num_layers, dim, pos_dim, heads, ff_dim, kernel):
        super().__init__()
        self.encoder_pos = CompactRelPositionalEncoding(pos_dim)
        self.layers = nn.ModuleList([Zipformer2EncoderLayer(dim, pos_dim, heads, ff_dim, kernel) for _ in range(num_layers)])

    def forward(self, src, src_key_padding_mask=None):
        pos_emb = self.encoder_pos(src)
        for mod in self.layers:
            src = mod(src, pos_emb, src_key_padding_mask=src_key_padding_mask)
        return src


class SimpleDownsample(nn.Module):
    def __init__(self, downsample):
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(-0.3, 0.3, downsample))
        self.downsample = downsample

    def forward(self, src):
        (seq_len, batch_size, in_channels) = src.shape
        ds = self.downsample
        d_seq_len = (seq_len + ds - 1) // ds
        pad = d_seq_len * ds - seq_len
        src_extra = src[src.shape[0] - 1 :].expand(pad, src.shape[1], src.shape[2])
        src = torch.cat((src, src_extra), dim=0)
        src = src.reshape(d_seq_len, ds, batch_size, in_channels)
        weights = self.bias.softmax(dim=0).unsqueeze(-1).unsqueeze(-1)
        return (src * weights).sum(dim=1)


class SimpleUpsample(nn.Module):
    def __init__(self, upsample):
        super().__init__()
        self.upsample = upsample

    def forward(self, src):
        (seq_len, batch_size, num_channels) = src.shape
        src = src.unsqueeze(1).expand(seq_len, self.upsample, batch_size, num_channels)
        return src.reshape(seq_len * self.upsample, batch_size, num_channels)


class DownsampledZipformer2Encoder(nn.Module):
    def __init__(self, encoder, dim, downsample):
        super().__init__()
        self.downsample_factor = downsample
        self.downsample = SimpleDownsample(downsample)
        self.encoder = encoder
        self.upsample = SimpleUpsample(downsample)
        self.out_combiner = BypassModule(dim, scale_min=0.0)

    def forward(self, src, src_key_padding_mask=None):
        src_orig = src
        src = self.downsample(src)
        mask = src_key_padding_mask[..., :: self.downsample_factor] if src_key_padding_mask is not None else None
        src = self.encoder(src, src_key_padding_mask=mask)
        src = self.upsample(src)
        src = src[: src_orig.shape[0]]
        return self.out_combiner(src_orig, src)


class ConvNeXt(nn.Module):
    def __init__(self, channels, hidden_ratio=3, kernel_size=(7, 7)):
        super().__init__()
        padding = ((kernel_size[0] - 1) // 2, (kernel_size[1] - 1) // 2)
        self.depthwise_conv = nn.Conv2d(channels, channels, kernel_size, groups=channels, padding=padding)
        self.pointwise_conv1 = nn.Conv2d(channels, channels * hidden_ratio, 1)
        self.activation = SwooshL()
        self.pointwise_conv2 = nn.Conv2d(channels * hidden_ratio, channels, 1)

    def forward(self, x):
        return x + self.pointwise_conv2(self.activation(self.pointwise_conv1(self.depthwise_conv(x))))


class Conv2dSubsampling(nn.Module):
    def __init__(self, in_channels, out_channels, l1=8, l2=24, l3=48):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, l1, 3, padding=(0, 1)), SwooshR(),
            nn.Conv2d(l1, l2, 3, stride=2, padding=0), SwooshR(),
            nn.Conv2d(l2, l3, 3, stride=(1, 2)), SwooshR(),
        )
        self.convnext = ConvNeXt(l3)
        out_width = (((in_channels - 1) // 2) - 1) // 2
        self.out = nn.Linear(out_width * l3, out_channels)
        self.out_norm = BiasNorm(out_channels)

    def forward(self, x):
        x = self.convnext(self.conv(x.unsqueeze(1)))
        b, c, t, f = x.size()
        return self.out_norm(self.out(x.transpose(1, 2).reshape(b, t, c * f)))


def convert_num_channels(x, num_channels):
    if num_channels <= x.shape[-1]:
        return x[..., :num_channels]
    zeros = torch.zeros(list(x.shape[:-1]) + [num_channels - x.shape[-1]], dtype=x.dtype, device=x.device)
    return torch.cat((x, zeros), dim=-1)


class Model(nn.Module):
    """Zipformer speech encoder: streams at several frame rates and widths, shared attention weights, bypasses, Swoosh and BiasNorm."""

    def __init__(self, feat, dims, downs, layers, heads, ff, kernels, vocab):
        super().__init__()
        self.dims = tuple(dims)
        self.encoder_embed = Conv2dSubsampling(feat, dims[0])
        encoders = []
        for d, ds, n, h, f, k in zip(dims, downs, layers, heads, ff, kernels):
            enc = Zipformer2Encoder(n, d, 24, h, f, k)
            encoders.append(enc if ds == 1 else DownsampledZipformer2Encoder(enc, d, ds))
        self.encoders = nn.ModuleList(encoders)
        self.downsample_output = SimpleDownsample(2)
        self.ctc_output = nn.Linear(max(dims), vocab)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, nonlinearity="relu")

    def _get_full_dim_output(self, outputs):
        output_dim = max(self.dims)
        output_pieces = [outputs[-1]]
        cur_dim = self.dims[-1]
        for i in range(len(self.dims) - 2, -1, -1):
            d = self.dims[i]
            if d > cur_dim:
                output_pieces.append(outputs[i][..., cur_dim:d])
                cur_dim = d
        assert cur_dim == output_dim
        return torch.cat(output_pieces, dim=-1)

    def forward(self, x, x_lens):
        x = self.encoder_embed(x)
        x_lens = (x_lens - 7) // 2
        x = x.permute(1, 0, 2)
        src_key_padding_mask = torch.arange(x.shape[0], device=x.device)[None, :] >= x_lens[:, None]
        outputs = []
        for i, module in enumerate(self.encoders):
            x = convert_num_channels(x, self.dims[i])
            x = module(x, src_key_padding_mask=src_key_padding_mask)
            outputs.append(x)
        x = self.downsample_output(self._get_full_dim_output(outputs))
        lengths = (x_lens + 1) // 2
        return self.ctc_output(x.permute(1, 0, 2)).log_softmax(dim=-1), lengths


def get_inputs():
    return [torch.randn(2, 141, 80), torch.tensor([141, 113])]


def get_init_inputs():
    return [80, [96, 128, 160, 96], [1, 2, 4, 2], [1, 1, 1, 1], [4, 4, 6, 4], [256, 320, 384, 256], [31, 15, 15, 15], 180]
