import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm


def fused_add_tanh_sigmoid_multiply(input_a, input_b, n_channels):
    in_act = input_a + input_b
    t_act = torch.tanh(in_act[:, :n_channels, :])
    s_act = torch.sigmoid(in_act[:, n_channels:, :])
    return t_act * s_act


def sequence_mask(length, max_length):
    x = torch.arange(max_length, dtype=length.dtype, device=length.device)
    return x.unsqueeze(0) < length.unsqueeze(1)


class LayerNorm(nn.Module):
    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.channels, self.eps = channels, eps
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        x = x.transpose(1, -1)
        x = F.layer_norm(x, (self.channels,), self.gamma, self.beta, self.eps)
        return x.transpose(1, -1)


class MultiHeadAttention(nn.Module):
    def __init__(self, channels, n_heads, window_size):
        super().__init__()
        self.n_heads, self.window_size = n_heads, window_size
        self.k_channels = channels // n_heads
        self.conv_q = nn.Conv1d(channels, channels, 1)
        self.conv_k = nn.Conv1d(channels, channels, 1)
        self.conv_v = nn.Conv1d(channels, channels, 1)
        self.conv_o = nn.Conv1d(channels, channels, 1)
        rel_stddev = self.k_channels**-0.5
        self.emb_rel_k = nn.Parameter(torch.randn(1, window_size * 2 + 1, self.k_channels) * rel_stddev)
        self.emb_rel_v = nn.Parameter(torch.randn(1, window_size * 2 + 1, self.k_channels) * rel_stddev)

    def forward(self, x, c, attn_mask=None):
        q, k, v = self.conv_q(x), self.conv_k(c), self.conv_v(c)
        return self.conv_o(self.attention(q, k, v, mask=attn_mask))

    def attention(self, query, key, value, mask=None):
        b, d, t_s, t_t = (*key.size(), query.size(2))
        query = query.view(b, self.n_heads, self.k_channels, t_t).transpose(2, 3)
        key = key.view(b, self.n_heads, self.k_channels, t_s).transpose(2, 3)
        value = value.view(b, self.n_heads, self.k_channels, t_s).transpose(2, 3)
        scores = torch.matmul(query / math.sqrt(self.k_channels), key.transpose(-2, -1))
        key_relative_embeddings = self._get_relative_embeddings(self.emb_rel_k, t_s)
        rel_logits = torch.matmul(query / math.sqrt(self.k_channels), key_relative_embeddings.unsqueeze(0).transpose(-2, -1))
        scores = scores + self._relative_position_to_absolute_position(rel_logits)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e4)
        p_attn = F.softmax(scores, dim=-1)
        output = torch.matmul(p_attn, value)
        relative_weights = self._absolute_position_to_relative_position(p_attn)
        value_relative_embeddings = self._get_relative_embeddings(self.emb_rel_v, t_s)
        output = output + torch.matmul(relative_weights, value_relative_embeddings.unsqueeze(0))
        return output.transpose(2, 3).contiguous().view(b, d, t_t)

    def _get_relative_embeddings(self, relative_embeddings, length):
        pad_length = max(length - (self.window_size + 1), 0)
        slice_start_position = max((self.window_size + 1) - length, 0)
        slice_end_position = slice_start_position + 2 * length - 1
        if pad_length > 0:
            relative_embeddings = F.pad(relative_embeddings, (0, 0, pad_length, pad_length, 0, 0))
        return relative_embeddings[:, slice_start_position:slice_end_position]

    def _relative_position_to_absolute_position(self, x):
        batch, heads, length, _ = x.size()
        x = F.pad(x, (0, 1))
        x_flat = x.view([batch, heads, length * 2 * length])
        x_flat = F.pad(x_flat, (0, length - 1))
        return x_flat.view([batch, heads, length + 1, 2 * length - 1])[:, :, :length, length - 1 :]

    def _absolute_position_to_relative_position(self, x):
        batch, heads, length, _ = x.size()
        x = F.pad(x, (0, length - 1))
        x_flat = x.view([batch, heads, length**2 + length * (length - 1)])
        x_flat = F.pad(x_flat, (length, 0))
        return x_flat.view([batch, heads, length, 2 * length])[:, :, :, 1:]


class FFN(nn.Module):
    def __init__(self, channels, filter_channels, kernel_size):
        super().__init__()
        self.kernel_size = kernel_size
        self.conv_1 = nn.Conv1d(channels, filter_channels, kernel_size)
        self.conv_2 = nn.Conv1d(filter_channels, channels, kernel_size)

    def padding(self, x):
        return F.pad(x, [(self.kernel_size - 1) // 2, self.kernel_size // 2, 0, 0, 0, 0])

    def forward(self, x, x_mask):
        x = torch.relu(self.conv_1(self.padding(x * x_mask)))
        return self.conv_2(self.padding(x * x_mask)) * x_mask


class TextEncoder(nn.Module):
    def __init__(self, n_vocab, out_channels, hidden, filter_channels, n_heads, n_layers, kernel_size):
        super().__init__()
        self.out_channels, self.hidden = out_channels, hidden
        self.emb = nn.Embedding(n_vocab, hidden)
        nn.init.normal_(self.emb.weight, 0.0, hidden**-0.5)
        self.attn_layers = nn.ModuleList([MultiHeadAttention(hidden, n_heads, 4) for _ in range(n_layers)])
        self.norm_layers_1 = nn.ModuleList([LayerNorm(hidden) for _ in range(n_layers)])
        self.ffn_layers = nn.ModuleList([FFN(hidden, filter_channels, kernel_size) for _ in range(n_layers)])
        self.norm_layers_2 = nn.ModuleList([LayerNorm(hidden) for _ in range(n_layers)])
        self.proj = nn.Conv1d(hidden, out_channels * 2, 1)

    def forward(self, x, x_lengths):
        x = self.emb(x) * math.sqrt(self.hidden)
        x = torch.transpose(x, 1, -1)
        x_mask = torch.unsqueeze(sequence_mask(x_lengths, x.size(2)), 1).to(x.dtype)
        attn_mask = x_mask.unsqueeze(2) * x_mask.unsqueeze(-1)
        x = x * x_mask
        for a, n1, f, n2 in zip(self.attn_layers, self.norm_layers_1, self.ffn_layers, self.norm_layers_2):
            x = n1(x + a(x, x, attn_mask))
            x = n2(x + f(x, x_mask))
        x = x * x_mask
        stats = self.proj(x) * x_mask
        m, logs = torch.split(stats, self.out_channels, dim=1)
        return x, m, logs, x_mask


class WN(nn.Module):
    def __init__(self, hidden, kernel_size, dilation_rate, n_layers, gin_channels):
        super().__init__()
        self.hidden, self.n_layers = hidden, n_layers
        self.in_layers, self.res_skip_layers = nn.ModuleList(), nn.ModuleList()
        self.cond_layer = weight_norm(nn.Conv1d(gin_channels, 2 * hidden * n_layers, 1), name="weight")
        for i in range(n_layers):
            dilation = dilation_rate**i
            padding = int((kernel_size * dilation - dilation) / 2)
            self.in_layers.append(weight_norm(nn.Conv1d(hidden, 2 * hidden, kernel_size, dilation=dilation, padding=padding)))
            self.res_skip_layers.append(weight_norm(nn.Conv1d(hidden, 2 * hidden if i < n_layers - 1 else hidden, 1)))

    def forward(self, x, x_mask, g):
        output = torch.zeros_like(x)
        g = self.cond_layer(g)
        for i in range(self.n_layers):
            x_in = self.in_layers[i](x)
            cond_offset = i * 2 * self.hidden
            g_l = g[:, cond_offset : cond_offset + 2 * self.hidden, :]
            acts = fused_add_tanh_sigmoid_multiply(x_in, g_l, self.hidden)
            res_skip_acts = self.res_skip_layers[i](acts)
            if i < self.n_layers - 1:
                x = (x + res_skip_acts[:, : self.hidden, :]) * x_mask
                output = output + res_skip_acts[:, self.hidden :, :]
            else:
                output = output + res_skip_acts
        return output * x_mask


class PosteriorEncoder(nn.Module):
    def __init__(self, in_channels, out_channels, hidden, kernel_size, n_layers, gin):
        super().__init__()
        self.out_channels = out_channels
        self.pre = nn.Conv1d(in_channels, hidden, 1)
        self.enc = WN(hidden, kernel_size, 1, n_layers, gin)
        self.proj = nn.Conv1d(hidden, out_channels * 2, 1)

    def forward(self, x, x_lengths, g, noise):
        x_mask = torch.unsqueeze(sequence_mask(x_lengths, x.size(2)), 1).to(x.dtype)
        x = self.pre(x) * x_mask
        x = self.enc(x, x_mask, g=g)
        stats = self.proj(x) * x_mask
        m, logs = torch.split(stats, self.out_channels, dim=1)
        return (m + noise * torch.exp(logs)) * x_mask, m, logs, x_mask


class ResidualCouplingLayer(nn.Module):
    def __init__(self, channels, hidden, kernel_size, n_layers, gin):
        super().__init__()
        self.half_channels = channels // 2
        self.pre = nn.Conv1d(self.half_channels, hidden, 1)
        self.enc = WN(hidden, kernel_size, 1, n_layers, gin)
        self.post = nn.Conv1d(hidden, self.half_channels, 1)
        self.post.weight.data.mul_(0.1)

    def forward(self, x, x_mask, g):
        x0, x1 = torch.split(x, [self.half_channels] * 2, 1)
        h = self.pre(x0) * x_mask
        h = self.enc(h, x_mask, g=g)
        m = self.post(h) * x_mask
        x1 = m + x1 * x_mask
        return torch.cat([x0, x1], 1)


class DurationPredictor(nn.Module):
    def __init__(self, in_channels, filter_channels, kernel_size, gin):
        super().__init__()
        self.conv_1 = nn.Conv1d(in_channels, filter_channels, kernel_size, padding=kernel_size // 2)
        self.norm_1 = LayerNorm(filter_channels)
        self.conv_2 = nn.Conv1d(filter_channels, filter_channels, kernel_size, padding=kernel_size // 2)
        self.norm_2 = LayerNorm(filter_channels)
        self.proj = nn.Conv1d(filter_channels, 1, 1)
        self.cond = nn.Conv1d(gin, in_channels, 1)

    def forward(self, x, x_mask, g):
        x = torch.detach(x) + self.cond(torch.detach(g))
        x = self.norm_1(torch.relu(self.conv_1(x * x_mask)))
        x = self.norm_2(torch.relu(self.conv_2(x * x_mask)))
        return self.proj(x * x_mask) * x_mask


@torch.no_grad()
def maximum_path(value, mask, max_neg_val=-1e9):
    """value, mask: [b, t_x, t_y]"""
    value = value * mask
    b, t_x, t_y = value.shape
    direction = torch.zeros_like(value, dtype=torch.bool)
    v = value.new_zeros(b, t_x)
    x_range = torch.arange(t_x, device=value.device).unsqueeze(0)
    for j in range(t_y):
        v0 = F.pad(v, (1, 0), value=max_neg_val)[:, :-1]
        max_mask = v >= v0
        v_max = torch.where(max_mask, v, v0)
        direction[:, :, j] = max_mask
        v = torch.where(x_range <= j, v_max + value[:, :, j], torch.full_like(v, max_neg_val))
    direction = torch.where(mask.bool(), direction, torch.ones_like(direction))
    path = torch.zeros_like(value)
    index = mask[:, :, 0].sum(1).long() - 1
    index_range = torch.arange(b, device=value.device)
    for j in reversed(range(t_y)):
        path[index_range, index, j] = 1
        index = index + direction[index_range, index, j].long() - 1
    return path * mask


class Model(nn.Module):
    """VITS training step without the vocoder: relative-window text encoder, WaveNet posterior, mean-only flow, monotonic alignment, KL and duration losses."""

    def __init__(self, n_vocab, spec_channels, inter, hidden, filter_channels, n_heads, n_layers, n_flows, n_speakers, gin):
        super().__init__()
        self.enc_p = TextEncoder(n_vocab, inter, hidden, filter_channels, n_heads, n_layers, 3)
        self.enc_q = PosteriorEncoder(spec_channels, inter, hidden, 5, 4, gin)
        self.flow = nn.ModuleList([ResidualCouplingLayer(inter, hidden, 5, 3, gin) for _ in range(n_flows)])
        self.dp = DurationPredictor(hidden, 128, 3, gin)
        self.emb_g = nn.Embedding(n_speakers, gin)

    def forward(self, x, x_lengths, y, y_lengths, sid, noise):
        x, m_p, logs_p, x_mask = self.enc_p(x, x_lengths)
        g = self.emb_g(sid).unsqueeze(-1)
        z, m_q, logs_q, y_mask = self.enc_q(y, y_lengths, g=g, noise=noise)
        z_p = z
        for layer in self.flow:
            z_p = layer(z_p, y_mask, g=g)
            z_p = torch.flip(z_p, [1])
        with torch.no_grad():
            s_p_sq_r = torch.exp(-2 * logs_p)
            neg_cent1 = torch.sum(-0.5 * math.log(2 * math.pi) - logs_p, [1], keepdim=True)
            neg_cent2 = torch.matmul(-0.5 * (z_p**2).transpose(1, 2), s_p_sq_r)
            neg_cent3 = torch.matmul(z_p.transpose(1, 2), (m_p * s_p_sq_r))
            neg_cent4 = torch.sum(-0.5 * (m_p**2) * s_p_sq_r, [1], keepdim=True)
            neg_cent = neg_cent1 + neg_cent2 + neg_cent3 + neg_cent4
            attn_mask = torch.unsqueeze(x_mask, 2) * torch.unsqueeze(y_mask, -1)
            attn = maximum_path(neg_cent.transpose(1, 2), attn_mask.squeeze(1).transpose(1, 2))
            attn = attn.transpose(1, 2).unsqueeze(1).detach()
        w = attn.sum(2)
        logw_ = torch.log(w + 1e-6) * x_mask
        logw = self.dp(x, x_mask, g=g)
        l_length = torch.sum((logw - logw_) ** 2, [1, 2]) / torch.sum(x_mask)
        # expand prior
        m_p = torch.matmul(attn.squeeze(1), m_p.transpose(1, 2)).transpose(1, 2)
        logs_p = torch.matmul(attn.squeeze(1), logs_p.transpose(1, 2)).transpose(1, 2)
        kl = logs_p - logs_q - 0.5
        kl += 0.5 * ((z_p - m_p) ** 2) * torch.exp(-2.0 * logs_p)
        loss_kl = torch.sum(kl * y_mask) / torch.sum(y_mask)
        return loss_kl + torch.sum(l_length), attn, (z, z_p, m_p, logs_p, m_q, logs_q)


def get_inputs():
    B, TX, TY = 3, 23, 62
    text = torch.randint(1, 90, (B, TX))
    spec = torch.randn(B, 129, TY).abs()
    noise = torch.randn(B, 48, TY)
    return [text, torch.tensor([23, 17, 20]), spec, torch.tensor([62, 51, 57]), torch.tensor([0, 3, 5]), noise]


def get_init_inputs():
    return [90, 129, 48, 96, 256, 2, 3, 3, 8, 40]
