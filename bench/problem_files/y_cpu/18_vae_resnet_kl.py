import torch
import torch.nn as nn
import torch.nn.functional as F


def nonlinearity(x):
    return x * torch.sigmoid(x)


def Normalize(ch, groups=8):
    return nn.GroupNorm(num_groups=groups, num_channels=ch, eps=1e-6, affine=True)


class ResnetBlock(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.norm1, self.conv1 = Normalize(i), nn.Conv2d(i, o, 3, 1, 1)
        self.norm2, self.conv2 = Normalize(o), nn.Conv2d(o, o, 3, 1, 1)
        self.dropout = nn.Dropout(0.0)
        self.nin_shortcut = nn.Conv2d(i, o, 1) if i != o else None

    def forward(self, x):
        h = self.conv1(nonlinearity(self.norm1(x)))
        h = self.conv2(self.dropout(nonlinearity(self.norm2(h))))
        if self.nin_shortcut is not None:
            x = self.nin_shortcut(x)
        return x + h


class AttnBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.norm = Normalize(ch)
        self.q, self.k, self.v = nn.Conv2d(ch, ch, 1), nn.Conv2d(ch, ch, 1), nn.Conv2d(ch, ch, 1)
        self.proj_out = nn.Conv2d(ch, ch, 1)

    def forward(self, x):
        h_ = self.norm(x)
        q, k, v = self.q(h_), self.k(h_), self.v(h_)
        b, c, h, w = q.shape
        q = q.reshape(b, c, h * w).permute(0, 2, 1)
        k = k.reshape(b, c, h * w)
        w_ = torch.bmm(q, k) * (int(c) ** (-0.5))
        w_ = F.softmax(w_, dim=2).permute(0, 2, 1)
        h_ = torch.bmm(v.reshape(b, c, h * w), w_).reshape(b, c, h, w)
        return x + self.proj_out(h_)


class Downsample(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.conv = nn.Conv2d(ch, ch, 3, 2, 0)

    def forward(self, x):
        return self.conv(F.pad(x, (0, 1, 0, 1), mode="constant", value=0))


class Upsample(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.conv = nn.Conv2d(ch, ch, 3, 1, 1)

    def forward(self, x):
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Model(nn.Module):
    """Convolutional VAE (LDM autoencoder style): ResNet blocks with GroupNorm,
    mid attention, reparameterised with given noise; L1 + KL with free bits."""

    def __init__(self, ch, ch_mult, z_ch, kl_weight=1e-2, free_bits=0.05):
        super().__init__()
        self.kl_weight, self.free_bits = kl_weight, free_bits
        chs = [ch * m for m in ch_mult]
        enc = [nn.Conv2d(3, ch, 3, 1, 1)]
        c = ch
        for i, o in enumerate(chs):
            enc.append(ResnetBlock(c, o))
            c = o
            if i < len(chs) - 1:
                enc.append(Downsample(c))
        enc += [ResnetBlock(c, c), AttnBlock(c), Normalize(c), nn.SiLU(), nn.Conv2d(c, 2 * z_ch, 3, 1, 1)]
        self.encoder = nn.Sequential(*enc)
        self.quant_conv = nn.Conv2d(2 * z_ch, 2 * z_ch, 1)
        self.post_quant_conv = nn.Conv2d(z_ch, z_ch, 1)
        dec = [nn.Conv2d(z_ch, c, 3, 1, 1), ResnetBlock(c, c), AttnBlock(c)]
        for i, o in reversed(list(enumerate(chs))):
            dec.append(ResnetBlock(c, o))
            c = o
            if i > 0:
                dec.append(Upsample(c))
        dec += [Normalize(c), nn.SiLU(), nn.Conv2d(c, 3, 3, 1, 1)]
        self.decoder = nn.Sequential(*dec)
        self.logvar = nn.Parameter(torch.zeros(()))

    def forward(self, x, eps):
        moments = self.quant_conv(self.encoder(x))
        mean, logvar = torch.chunk(moments, 2, dim=1)
        logvar = torch.clamp(logvar, -30.0, 20.0)
        z = mean + torch.exp(0.5 * logvar) * eps
        rec = self.decoder(self.post_quant_conv(z))

        rec_loss = torch.abs(x.contiguous() - rec.contiguous())
        nll = rec_loss / torch.exp(self.logvar) + self.logvar
        nll = torch.sum(nll) / nll.shape[0]
        kl = 0.5 * (torch.pow(mean, 2) + logvar.exp() - 1.0 - logvar)
        kl = torch.clamp(kl.mean(dim=(0, 2, 3)), min=self.free_bits).sum() * mean.shape[2] * mean.shape[3]
        loss = (nll + self.kl_weight * kl) / x[0].numel()
        return loss, rec, mean, kl


def get_inputs():
    g = torch.Generator().manual_seed(17)
    return [torch.rand(2, 3, 56, 72, generator=g) * 2 - 1, torch.randn(2, 6, 14, 18, generator=g)]


def get_init_inputs():
    return [24, [1, 2, 3], 6]
