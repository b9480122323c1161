import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class moving_avg(nn.Module):
    """Moving average block to highlight the trend of time series."""

    def __init__(self, kernel_size, stride):
        super(moving_avg, self).__init__()
        self.kernel_size = kernel_size
        self.avg = nn.AvgPool1d(kernel_size=kernel_size, stride=stride, padding=0)

    def forward(self, x):
        front = x[:, 0:1, :].repeat(1, (self.kernel_size - 1) // 2, 1)
        end = x[:, -1:, :].repeat(1, (self.kernel_size - 1) // 2, 1)
        x = torch.cat([front, x, end], dim=1)
        x = self.avg(x.permute(0, 2, 1))
        return x.permute(0, 2, 1)


class series_decomp(nn.Module):
    def __init__(self, kernel_size):
        super().__init__()
        self.moving_avg = moving_avg(kernel_size, stride=1)

    def forward(self, x):
        mean = self.moving_avg(x)
        return x - mean, mean


class my_Layernorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.layernorm = nn.LayerNorm(channels)

    def forward(self, x):
        x_hat = self.layernorm(x)
        bias = torch.mean(x_hat, dim=1).unsqueeze(1).repeat(1, x.shape[1], 1)
        return x_hat - bias


class AutoCorrelation(nn.Module):
    def __init__(self, d_model, n_heads, factor):
        super().__init__()
        self.factor, self.n_heads = factor, n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def time_delay_agg(self, values, corr):
        # values, corr: B H E L
        B, H, E, L = values.shape
        top_k = int(self.factor * math.log(L))
        mean_value = corr.mean(dim=1).mean(dim=1)
        index = torch.topk(mean_value.mean(dim=0), top_k, dim=-1)[1]
        weights = torch.stack([mean_value[:, index[i]] for i in range(top_k)], dim=-1)
        tmp_corr = torch.softmax(weights, dim=-1)
        init_index = torch.arange(L, device=values.device).view(1, 1, 1, -1).repeat(B, H, E, 1)
        tmp_values = values.repeat(1, 1, 1, 2)
        agg = torch.zeros_like(values)
        for i in range(top_k):
            pattern = torch.gather(tmp_values, dim=-1, index=init_index + index[i])
            agg = agg + pattern * tmp_corr[:, i].view(-1, 1, 1, 1)
        return agg

    def forward(self, queries, keys, values):
        B, L, _ = queries.shape
        S, H = keys.shape[1], self.n_heads
        q = self.q(queries).view(B, L, H, -1)
        k = self.k(keys).view(B, S, H, -1)
        v = self.v(values).view(B, S, H, -1)
        if L > S:
            zeros = torch.zeros_like(q[:, : (L - S), :])
            v = torch.cat([v, zeros], dim=1)
            k = torch.cat([k, zeros], dim=1)
        else:
            v, k = v[:, :L], k[:, :L]
        fft_dtype = torch.promote_types(q.dtype, torch.float32)
        q_fft = torch.fft.rfft(q.permute(0, 2, 3, 1).contiguous().to(fft_dtype), dim=-1)
        k_fft = torch.fft.rfft(k.permute(0, 2, 3, 1).contiguous().to(fft_dtype), dim=-1)
        corr = torch.fft.irfft(q_fft * torch.conj(k_fft), n=L, dim=-1).to(v.dtype)
        V = self.time_delay_agg(v.permute(0, 2, 3, 1).contiguous(), corr).permute(0, 3, 1, 2)
        return self.o(V.contiguous().view(B, L, -1))


class EncoderLayer(nn.Module):
    def __init__(self, d, heads, d_ff, kernel, factor):
        super().__init__()
        self.attention = AutoCorrelation(d, heads, factor)
        self.conv1 = nn.Conv1d(d, d_ff, 1, bias=False)
        self.conv2 = nn.Conv1d(d_ff, d, 1, bias=False)
        self.decomp1, self.decomp2 = series_decomp(kernel), series_decomp(kernel)

    def forward(self, x):
        x, _ = self.decomp1(x + self.attention(x, x, x))
        y = self.conv2(F.gelu(self.conv1(x.transpose(-1, 1)))).transpose(-1, 1)
        return self.decomp2(x + y)[0]


class DecoderLayer(nn.Module):
    def __init__(self, d, c_out, heads, d_ff, kernel, factor):
        super().__init__()
        self.self_attention, self.cross_attention = AutoCorrelation(d, heads, factor), AutoCorrelation(d, heads, factor)
        self.conv1 = nn.Conv1d(d, d_ff, 1, bias=False)
        self.conv2 = nn.Conv1d(d_ff, d, 1, bias=False)
        self.decomp1, self.decomp2, self.decomp3 = series_decomp(kernel), series_decomp(kernel), series_decomp(kernel)
        self.projection = nn.Conv1d(d, c_out, 3, padding=1, padding_mode="circular", bias=False)

    def forward(self, x, cross):
        x, t1 = self.decomp1(x + self.self_attention(x, x, x))
        x, t2 = self.decomp2(x + self.cross_attention(x, cross, cross))
        y = self.conv2(F.relu(self.conv1(x.transpose(-1, 1)))).transpose(-1, 1)
        x, t3 = self.decomp3(x + y)
        trend = self.projection((t1 + t2 + t3).permute(0, 2, 1)).transpose(1, 2)
        return x, trend


class DataEmbedding(nn.Module):
    def __init__(self, c_in, d):
        super().__init__()
        self.tokenConv = nn.Conv1d(c_in, d, 3, padding=1, padding_mode="circular", bias=False)
        self.month, self.day, self.hour = nn.Embedding(13, d), nn.Embedding(32, d), nn.Embedding(24, d)

    def forward(self, x, mark):
        x = self.tokenConv(x.permute(0, 2, 1)).transpose(1, 2)
        return x + self.month(mark[:, :, 0]) + self.day(mark[:, :, 1]) + self.hour(mark[:, :, 2])


class Model(nn.Module):
    """Autoformer forecaster: progressive series decomposition with FFT auto-correlation."""

    def __init__(self, c, pred_len, label_len, d, heads, d_ff, e_layers, kernel, factor):
        super().__init__()
        self.pred_len, self.label_len = pred_len, label_len
        self.decomp = series_decomp(kernel)
        self.enc_embedding, self.dec_embedding = DataEmbedding(c, d), DataEmbedding(c, d)
        self.encoder = nn.ModuleList([EncoderLayer(d, heads, d_ff, kernel, factor) for _ in range(e_layers)])
        self.decoder = DecoderLayer(d, c, heads, d_ff, kernel, factor)
        self.enc_norm, self.dec_norm = my_Layernorm(d), my_Layernorm(d)
        self.out = nn.Linear(d, c)

    def forward(self, x_enc, mark_enc, mark_dec):
        mean = torch.mean(x_enc, dim=1).unsqueeze(1).repeat(1, self.pred_len, 1)
        zeros = torch.zeros_like(mean)
        seasonal, trend = self.decomp(x_enc)
        trend = torch.cat([trend[:, -self.label_len :, :], mean], dim=1)
        seasonal = torch.cat([seasonal[:, -self.label_len :, :], zeros], dim=1)
        h = self.enc_embedding(x_enc, mark_enc)
        for layer in self.encoder:
            h = layer(h)
        h = self.enc_norm(h)
        x, residual_trend = self.decoder(self.dec_embedding(seasonal, mark_dec), h)
        out = trend + residual_trend + self.out(self.dec_norm(x))
        return out[:, -self.pred_len :, :]


def _mark(B, L):
    return torch.stack([torch.randint(1, 13, (B, L)), torch.randint(1, 32, (B, L)), torch.randint(0, 24, (B, L))], -1)


def get_inputs():
    B, L = 5, 96
    t = torch.arange(L).float()
    x = torch.sin(t[None, :, None] * 6.2832 / 24 + torch.rand(B, 1, 7) * 6) + 0.3 * torch.randn(B, L, 7)
    return [x, _mark(B, L), _mark(B, 48 + 36)]


def get_init_inputs():
    return [7, 36, 48, 64, 4, 128, 2, 25, 1]
