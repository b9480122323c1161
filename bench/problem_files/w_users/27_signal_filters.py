import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Biquad cascade, comb, FIR, Savitzky Golay, median filter, compressor envelope, Hilbert,
    Goertzel, autocorrelation pitch. One long forward on purpose."""

    def __init__(self, taps=31, sr=1000.0):
        super().__init__()
        self.taps = taps
        self.cut = nn.Parameter(torch.tensor([60.0, 200.0]))
        self.q = nn.Parameter(torch.tensor([0.7, 1.2]))
        self.sr = sr
        self.thresh = nn.Parameter(torch.tensor(-12.0))
        self.ratio = nn.Parameter(torch.tensor(4.0))
        self.comb = nn.Parameter(torch.tensor(0.3))
        self.fir_cut = nn.Parameter(torch.tensor(0.2))
        x = torch.arange(-4, 5, dtype=torch.float64)
        V = torch.stack([x ** i for i in range(4)], 1)
        self.register_buffer("savgol", torch.linalg.pinv(V)[:2].float())
        self.register_buffer("win", torch.hamming_window(taps, periodic=False))
        self.register_buffer("state", torch.zeros(2, 2))

    def coeffs(self):
        w = 2 * math.pi * self.cut.clamp(5, 480) / self.sr
        al = w.sin() / (2 * self.q.clamp_min(0.2))
        c = w.cos()
        b = torch.stack([(1 - c) / 2, 1 - c, (1 - c) / 2])
        a = torch.stack([1 + al, -2 * c, 1 - al])
        return b / a[0], a / a[0]

    def biquad(self, x, b, a, z):
        y = []
        z1, z2 = z[0], z[1]
        for n in range(x.shape[-1]):
            xn = x[..., n]
            yn = b[0] * xn + z1
            z1 = b[1] * xn - a[1] * yn + z2
            z2 = b[2] * xn - a[2] * yn
            y.append(yn)
        return torch.stack(y, -1), (z1, z2)

    def sinc_fir(self, x):
        n = torch.arange(self.taps, device=x.device) - (self.taps - 1) / 2
        fc = torch.sigmoid(self.fir_cut) * 0.5
        h = 2 * fc * torch.sinc(2 * fc * n) * self.win
        h = h / h.sum()
        return F.conv1d(x[:, None], h.flip(0)[None, None], padding=self.taps // 2)[:, 0]

    def forward(self, x):
        B, T = x.shape
        x = x - x.mean(1, keepdim=True)
        b, a = self.coeffs()
        lo, (s1, s2) = self.biquad(x, b[:, 0], a[:, 0], self.state[0])
        lo, _ = self.biquad(lo, b[:, 1], a[:, 1], self.state[1])
        # comb: blocks of the delay length are parallel
        D = 24
        blocks = list(F.pad(x, (0, -T % D)).split(D, 1))
        for i in range(1, len(blocks)):
            blocks[i] = blocks[i] + self.comb.tanh() * blocks[i - 1]
        comb = torch.cat(blocks, 1)[:, :T]
        fir = self.sinc_fir(x)
        sg = F.conv1d(F.pad(x[:, None], (4, 4), mode="replicate"), self.savgol[:, None])
        med = F.pad(x, (3, 3), mode="constant").unfold(1, 7, 1).median(-1)
        despiked = torch.where((x - med.values).abs() > 1.5, med.values, x)
        # envelope: peak hold with decay in log domain by cummax
        decay = 0.02
        t = torch.arange(T, device=x.device, dtype=x.dtype) * decay
        lx = torch.log(x.abs() + 1e-4)
        env = (lx + t).cummax(1)[0] - t
        db = env * (20 / math.log(10))
        over = F.relu(db - self.thresh)
        gain = -over * (1 - 1 / self.ratio.clamp(min=1))
        comp = x * 10 ** (gain / 20)
        # analytic signal
        X = torch.fft.fft(despiked)
        hmul = torch.zeros(T, device=x.device)
        hmul[0] = 1
        hmul[1:(T + 1) // 2] = 2
        if T % 2 == 0:
            hmul[T // 2] = 1
        an = torch.fft.ifft(X * hmul)
        amp = torch.abs(an)
        phase_step = torch.angle(an[:, 1:] * an[:, :-1].conj() + 1e-6).detach()
        # pitch by normalised autocorrelation over lags 5..60
        lags = torch.stack([(x[:, k:] * x[:, : T - k]).sum(1) / (T - k) for k in range(5, 60)], 1)
        pitch = lags.argmax(1) + 5
        r0 = (x * x).mean(1)
        # LPC order 4 from a Toeplitz system
        r = torch.stack([(x[:, k:] * x[:, : T - k]).sum(1) for k in range(5)], 1)
        ii = torch.arange(4, device=x.device)
        R = r[:, (ii[:, None] - ii[None, :]).abs()] + 1e-2 * torch.eye(4, device=x.device)
        lpc = torch.linalg.solve(R, r[:, 1:].unsqueeze(-1)).squeeze(-1)
        if self.training:
            self.state[0, 0] = s1.detach().mean() * 0.01
            self.state[0, 1] = 0.01 * s2.detach().mean()
        return lo, comb + fir, sg, comp, amp, phase_step.cos(), lags.amax(1) / r0, pitch, lpc


def get_inputs():
    return [torch.randn(16, 100)]


def get_init_inputs():
    return [31, 1000.0]
