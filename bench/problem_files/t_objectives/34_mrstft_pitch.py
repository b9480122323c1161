import torch
import torch.nn as nn
import torch.nn.functional as F


class STFTLoss(nn.Module):
    def __init__(self, n_fft, hop, win, n_mels):
        super().__init__()
        self.n_fft, self.hop, self.win = n_fft, hop, win
        self.register_buffer("window", torch.hann_window(win))
        bins = n_fft // 2 + 1
        centers = torch.linspace(0, 1, n_mels + 2).pow(1.6) * (bins - 1)
        f = torch.arange(bins).float()
        lo, mid, hi = centers[:-2, None], centers[1:-1, None], centers[2:, None]
        fb = torch.minimum((f - lo) / (mid - lo).clamp(min=0.5), (hi - f) / (hi - mid).clamp(min=0.5))
        self.register_buffer("fb", fb.clamp(min=0))

    def mag(self, x):
        s = torch.stft(x, self.n_fft, self.hop, self.win, self.window, return_complex=True)
        return torch.sqrt(torch.clamp(s.real ** 2 + s.imag ** 2, min=1e-7))

    def forward(self, x, y):
        xm, ym = self.mag(x), self.mag(y)
        sc = torch.norm(ym - xm, p="fro") / torch.norm(ym, p="fro")
        log_mag = F.l1_loss(torch.log(ym), torch.log(xm))
        mel = F.l1_loss(torch.log(self.fb @ xm + 1e-4), torch.log(self.fb @ ym + 1e-4))
        return sc + log_mag + mel


class Model(nn.Module):
    """Vocoder spectral loss at three resolutions, SI-SDR, and a CREPE-like pitch classification loss."""

    def __init__(self, resolutions, n_pitch):
        super().__init__()
        self.losses = nn.ModuleList(STFTLoss(*r) for r in resolutions)
        self.register_buffer("cents", torch.linspace(0, 7180, n_pitch))

    @staticmethod
    def si_sdr(est, ref, eps=1e-6):
        est = est - est.mean(-1, keepdim=True)
        ref = ref - ref.mean(-1, keepdim=True)
        a = (est * ref).sum(-1, keepdim=True) / (ref.pow(2).sum(-1, keepdim=True) + eps)
        proj = a * ref
        noise = est - proj
        return 10 * torch.log10((proj.pow(2).sum(-1) + eps) / (noise.pow(2).sum(-1) + eps))

    def pitch(self, logits, f0, voiced):
        cents = 1200 * torch.log2(f0.clamp(min=30.0) / 31.7)
        target = torch.exp(-((self.cents - cents.unsqueeze(-1)) ** 2) / (2 * 60.0 ** 2))
        bce = F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(-1)
        p = logits.softmax(-1)
        est = (p * self.cents).sum(-1)
        dist = F.huber_loss(est / 100, cents / 100, reduction="none", delta=5.0)
        return ((bce + 0.01 * dist) * voiced).sum() / voiced.sum().clamp(min=1)

    def forward(self, est, ref, pitch_logits, f0, voiced):
        loss = 0.0
        for l in self.losses:
            loss = loss + l(est, ref)
        loss = loss / len(self.losses)
        return loss - 0.02 * self.si_sdr(est, ref).mean() + self.pitch(pitch_logits, f0, voiced)


def get_inputs():
    ref = torch.randn(3, 5003) * 0.3
    return [
        ref + 0.1 * torch.randn(3, 5003), ref, torch.randn(3, 40, 180),
        60 + 400 * torch.rand(3, 40), (torch.rand(3, 40) > 0.3).float(),
    ]


def get_init_inputs():
    return [[(512, 120, 480, 40), (256, 60, 240, 32), (128, 30, 100, 20)], 180]
