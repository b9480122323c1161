import torch
import torch.nn as nn
import torch.nn.functional as F


class IdentityBasis(nn.Module):
    """Splits theta into a full-rate backcast and knots that are interpolated to the horizon."""

    def __init__(self, backcast_size, forecast_size, mode, n_out):
        super().__init__()
        self.b, self.f, self.mode, self.n_out = backcast_size, forecast_size, mode, n_out

    def forward(self, theta):
        backcast, knots = theta[:, :self.b], theta[:, self.b:]
        knots = knots.reshape(len(knots), self.n_out, -1)
        if self.mode in ("nearest", "linear"):
            return backcast, F.interpolate(knots, size=self.f, mode=self.mode)
        groups = int(self.mode.split("-")[-1])
        n = len(knots)
        forecast = knots.new_zeros(n, self.n_out, self.f)
        for i in range(-(-n // groups)):
            part = knots[i * groups:(i + 1) * groups].unsqueeze(1)
            up = F.interpolate(part, size=(self.n_out, self.f), mode="bicubic")
            forecast[i * groups:(i + 1) * groups] += up[:, 0]
        return backcast, forecast


class Block(nn.Module):
    def __init__(self, L, H, n_x, n_s, pool, n_freq, mode, hidden, n_out, pooling):
        super().__init__()
        self.pool = (nn.MaxPool1d if pooling == "max" else nn.AvgPool1d)(pool, stride=pool, ceil_mode=True)
        pooled = -(-L // pool)
        n_theta = L + n_out * max(H // n_freq, 1)
        dims = [pooled + n_x * (pooled + -(-H // pool)) + n_s] + hidden
        layers = []
        for a, b in zip(dims[:-1], dims[1:]):
            layers += [nn.Linear(a, b), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers, nn.Linear(dims[-1], n_theta))
        self.basis = IdentityBasis(L, H, mode, n_out)

    def forward(self, y, x_hist, x_futr, stat):
        b = y.shape[0]
        parts = [self.pool(y.unsqueeze(1)).squeeze(1)]
        parts.append(self.pool(x_hist.transpose(1, 2)).reshape(b, -1))
        parts.append(self.pool(x_futr.transpose(1, 2)).reshape(b, -1))
        parts.append(stat.reshape(b, -1))
        return self.basis(self.layers(torch.cat(parts, dim=1)))


class Model(nn.Module):
    """N-HiTS forecaster: multi-rate pooled blocks, interpolated knots, scaled masked multi-quantile loss."""

    def __init__(self, L, H, n_x, n_s, n_ids, pools, freqs, modes, width, n_out):
        super().__init__()
        self.L, self.H, self.n_out = L, H, n_out
        self.stat = nn.Embedding(n_ids, n_s)
        self.blocks = nn.ModuleList()
        for p, f, m in zip(pools, freqs, modes):
            for k in range(2):
                kind = "max" if k else "avg"
                self.blocks.append(Block(L, H, n_x, n_s, p, f, m, [width, width], n_out, kind))
        self.register_buffer("quantiles", torch.linspace(0.1, 0.9, n_out))

    def forward(self, ids, y, mask, x, target):
        med = (y * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        scale = ((y - med).abs() * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1) + 1e-3
        yn = (y - med) / scale * mask
        stat = self.stat(ids)
        x_hist, x_futr = x[:, :self.L], x[:, self.L:]
        residuals = yn.flip(dims=(-1,))
        rmask = mask.flip(dims=(-1,))
        forecast = yn[:, -1:, None].repeat(1, self.n_out, self.H)
        parts = [forecast]
        for block in self.blocks:
            backcast, f = block(residuals, x_hist, x_futr, stat)
            residuals = (residuals - backcast) * rmask
            forecast = forecast + f
            parts.append(f)
        err = ((target - med) / scale).unsqueeze(1) - forecast
        q = self.quantiles.view(1, -1, 1)
        loss = (q * err.clamp(min=0) + (1 - q) * (-err).clamp(min=0)).mean(1)
        recon = residuals.pow(2).sum() / rmask.sum().clamp(min=1)
        out = (forecast * scale.unsqueeze(1) + med.unsqueeze(1)).permute(0, 2, 1)
        return loss.mean() + 0.01 * recon, out, torch.stack(parts, dim=1).std(dim=1)


def get_inputs():
    b, L, H = 33, 365, 73
    return [torch.randint(0, 40, (b,)), torch.randn(b, L).cumsum(1), (torch.rand(b, L) > 0.07).float(),
            torch.randn(b, L + H, 3), torch.randn(b, H)]


def get_init_inputs():
    modes = ["linear", "cubic-16", "nearest", "linear"]
    return [365, 73, 3, 10, 40, [16, 8, 3, 1], [24, 12, 5, 1], modes, 384, 5]
