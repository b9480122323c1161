import torch
import torch.nn as nn
import torch.nn.functional as F


class NBeatsBlock(nn.Module):
    def __init__(self, backcast, forecast, width, basis, degree=3, harmonics=6):
        super().__init__()
        self.basis = basis
        self.fc = nn.ModuleList(
            [nn.Linear(backcast if i == 0 else width, width) for i in range(4)]
        )
        tb = torch.arange(backcast, dtype=torch.float32) / backcast
        tf = torch.arange(forecast, dtype=torch.float32) / forecast
        if basis == "trend":
            self.n = degree + 1
            bb = torch.stack([tb ** i for i in range(self.n)])
            fb = torch.stack([tf ** i for i in range(self.n)])
        elif basis == "seasonality":
            self.n = 2 * harmonics
            w = 2 * torch.pi * torch.arange(1, harmonics + 1).float().unsqueeze(1)
            bb = torch.cat([torch.cos(w * tb), torch.sin(w * tb)])
            fb = torch.cat([torch.cos(w * tf), torch.sin(w * tf)])
        if basis != "generic":
            self.register_buffer("bb", bb)
            self.register_buffer("fb", fb)
            self.theta = nn.Linear(width, 2 * self.n, bias=False)
        else:
            self.back = nn.Linear(width, backcast)
            self.fore = nn.Linear(width, forecast)

    def forward(self, x):
        h = x
        for fc in self.fc:
            h = F.relu(fc(h))
        if self.basis == "generic":
            return self.back(h), self.fore(h)
        theta = self.theta(h)
        return theta[:, : self.n] @ self.bb, theta[:, self.n:] @ self.fb


class PatchTST(nn.Module):
    def __init__(self, seq_len, pred_len, patch_len, stride, d, heads, layers):
        super().__init__()
        self.patch_len, self.stride = patch_len, stride
        self.pad = nn.ReplicationPad1d((0, stride))
        n = (seq_len + stride - patch_len) // stride + 1
        self.value_embedding = nn.Linear(patch_len, d, bias=False)
        self.pos = nn.Parameter(torch.randn(1, n, d) * 0.02)
        layer = nn.TransformerEncoderLayer(
            d, heads, dim_feedforward=2 * d, dropout=0.0, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(n * d, pred_len)

    def forward(self, x):  # x: [B, C, L]
        B, C, L = x.shape
        z = self.pad(x).unfold(-1, self.patch_len, self.stride)
        z = z.reshape(B * C, z.shape[2], z.shape[3])
        z = self.encoder(self.value_embedding(z) + self.pos)
        return self.head(z.flatten(start_dim=1)).view(B, C, -1)


class Model(nn.Module):
    """Forecaster mixing an N-BEATS residual stack with a channel-independent
    PatchTST under RevIN, gated per channel; masked MAE + quantile loss."""

    def __init__(self, channels, seq_len, pred_len, width, d, heads, layers):
        super().__init__()
        self.channels = channels
        self.affine_weight = nn.Parameter(torch.ones(channels))
        self.affine_bias = nn.Parameter(torch.zeros(channels))
        self.blocks = nn.ModuleList(
            [NBeatsBlock(seq_len, pred_len, width, b)
             for b in ("trend", "seasonality", "generic", "generic")]
        )
        self.patchtst = PatchTST(seq_len, pred_len, 16, 8, d, heads, layers)
        self.gate = nn.Parameter(torch.zeros(channels, 1))
        self.register_buffer("quantiles", torch.tensor([0.1, 0.5, 0.9]))
        self.spread = nn.Parameter(torch.tensor([-0.5, 0.0, 0.5]))

    def forward(self, x, y, y_mask):
        # x: [B, L, C]
        mean = x.mean(1, keepdim=True).detach()
        std = torch.sqrt(torch.var(x, dim=1, keepdim=True, unbiased=False) + 1e-5).detach()
        z = (x - mean) / std * self.affine_weight + self.affine_bias
        z = z.permute(0, 2, 1)
        B, C, L = z.shape

        residual = z.reshape(B * C, L)
        forecast = 0.0
        for blk in self.blocks:
            back, fore = blk(residual)
            residual = residual - back
            forecast = forecast + fore
        nb = forecast.view(B, C, -1)
        g = torch.sigmoid(self.gate)
        out = (g * nb + (1 - g) * self.patchtst(z)).permute(0, 2, 1)
        out = (out - self.affine_bias) / (self.affine_weight + 1e-10)
        pred = out * std + mean

        q = pred.unsqueeze(-1) + self.spread
        err = y.unsqueeze(-1) - q
        pinball = torch.maximum(self.quantiles * err, (self.quantiles - 1) * err).mean(-1)
        loss = (pinball * y_mask).sum() / y_mask.sum().clamp(min=1)
        mae = (torch.abs(pred - y) * y_mask).sum() / y_mask.sum().clamp(min=1)
        backcast_reg = residual.pow(2).mean()
        return loss + 0.5 * mae + 0.1 * backcast_reg, pred


def get_inputs():
    g = torch.Generator().manual_seed(6)
    x = torch.randn(9, 336, 7, generator=g).cumsum(1) * 0.2
    y = torch.randn(9, 96, 7, generator=g).cumsum(1) * 0.2 + x[:, -1:]
    return [x, y, (torch.rand(9, 96, 7, generator=g) > 0.1).float()]


def get_init_inputs():
    return [7, 336, 96, 256, 96, 6, 3]
