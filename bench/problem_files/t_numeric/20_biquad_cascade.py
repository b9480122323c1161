import math
import torch
import torch.nn as nn


class Model(nn.Module):
    """Cascade of RBJ peaking biquads (transposed direct form II) run sample by
    sample over many channels, then a one-pole envelope follower."""

    def __init__(self, fs, freqs, qs, gains_db, release):
        super().__init__()
        coef = []
        for f, q, g in zip(freqs, qs, gains_db):
            A = 10 ** (g / 40)
            w = 2 * math.pi * f / fs
            al = math.sin(w) / (2 * q)
            a0 = 1 + al / A
            coef.append([(1 + al * A) / a0, -2 * math.cos(w) / a0, (1 - al * A) / a0,
                         -2 * math.cos(w) / a0, (1 - al / A) / a0])
        self.register_buffer("coef", torch.tensor(coef))
        self.release = release

    def forward(self, x):
        # x: (channels, samples)
        C, T = x.shape
        y = x
        for b0, b1, b2, a1, a2 in self.coef:
            out = torch.empty_like(y)
            s1 = torch.zeros(C, device=x.device)
            s2 = torch.zeros(C, device=x.device)
            for t in range(T):
                xt = y[:, t]
                yt = b0 * xt + s1
                s1 = b1 * xt - a1 * yt + s2
                s2 = b2 * xt - a2 * yt
                out[:, t] = yt
            y = out
        env = torch.zeros(C, device=x.device)
        envs = []
        for t in range(T):
            env = torch.maximum(y[:, t].abs(), self.release * env)
            envs.append(env)
        return y, torch.stack(envs, dim=1)


def get_inputs():
    return [torch.randn(96, 64)]


def get_init_inputs():
    return [48000.0, [800.0, 3000.0, 9000.0], [0.7, 1.4, 1.0], [6.0, -4.0, 3.0], 0.95]
