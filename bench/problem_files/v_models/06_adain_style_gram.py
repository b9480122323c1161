import torch
import torch.nn as nn
import torch.nn.functional as F


def calc_mean_std(feat, eps=1e-5):
    size = feat.size()
    assert len(size) == 4
    N, C = size[:2]
    feat_var = feat.view(N, C, -1).var(dim=2) + eps
    feat_std = feat_var.sqrt().view(N, C, 1, 1)
    feat_mean = feat.view(N, C, -1).mean(dim=2).view(N, C, 1, 1)
    return feat_mean, feat_std


def adain(content, style):
    size = content.size()
    sm, ss = calc_mean_std(style)
    cm, cs = calc_mean_std(content)
    normalized = (content - cm.expand(size)) / cs.expand(size)
    return normalized * ss.expand(size) + sm.expand(size)


def gram_matrix(x):
    a, b, c, d = x.size()
    f = x.view(a, b, c * d)
    return torch.bmm(f, f.transpose(1, 2)).div(b * c * d)


class Model(nn.Module):
    """Arbitrary style transfer: a frozen encoder, AdaIN with a blend, a reflect-padded decoder, style losses."""

    def __init__(self, widths, style_weight, tv_weight):
        super().__init__()
        a, b, c = widths
        self.enc_1 = nn.Sequential(
            nn.Conv2d(3, 3, 1), nn.ReflectionPad2d(1), nn.Conv2d(3, a, 3), nn.ReLU(),
        )
        self.enc_2 = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(a, a, 3), nn.ReLU(), nn.MaxPool2d(2, 2, ceil_mode=True),
                                   nn.ReflectionPad2d((1, 1, 1, 1)), nn.Conv2d(a, b, 3), nn.ReLU())
        self.enc_3 = nn.Sequential(nn.MaxPool2d(2, 2, ceil_mode=True), nn.ReflectionPad2d(1), nn.Conv2d(b, c, 3), nn.ReLU())
        self.decoder = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(c, b, 3), nn.ReLU(), nn.Upsample(scale_factor=2, mode="nearest"),
            nn.ReflectionPad2d(1), nn.Conv2d(b, a, 3), nn.ReLU(), nn.Upsample(scale_factor=2, mode="nearest"),
            nn.ReplicationPad2d((1, 1, 1, 1)), nn.Conv2d(a, 3, 3),
        )
        for name in ["enc_1", "enc_2", "enc_3"]:
            for param in getattr(self, name).parameters():
                param.requires_grad = False
        self.style_weight, self.tv_weight = style_weight, tv_weight

    def encode_with_intermediate(self, x):
        results = [x]
        for i in range(3):
            func = getattr(self, "enc_{:d}".format(i + 1))
            results.append(func(results[-1]))
        return results[1:]

    def calc_style_loss(self, x, target):
        m, s = calc_mean_std(x)
        tm, ts = calc_mean_std(target)
        return F.mse_loss(m, tm) + F.mse_loss(s, ts) + F.mse_loss(gram_matrix(x), gram_matrix(target))

    def forward(self, content, style, alpha):
        style_feats = self.encode_with_intermediate(style)
        content_feat = self.encode_with_intermediate(content)[-1]
        t = adain(content_feat, style_feats[-1])
        t = alpha.view(-1, 1, 1, 1) * t + (1 - alpha.view(-1, 1, 1, 1)) * content_feat
        g_t = self.decoder(t)
        g_t = g_t[..., : content.size(2), : content.size(3)]
        g_feats = self.encode_with_intermediate(g_t)
        loss_c = F.mse_loss(g_feats[-1], t)
        loss_s = sum(self.calc_style_loss(g, s.detach()) for g, s in zip(g_feats, style_feats))
        tv = (g_t[:, :, 1:] - g_t[:, :, :-1]).abs().mean() + (g_t[..., 1:] - g_t[..., :-1]).abs().mean()
        return g_t, loss_c + self.style_weight * loss_s + self.tv_weight * tv


def get_inputs():
    return [torch.rand(2, 3, 46, 51), torch.rand(2, 3, 39, 55), torch.tensor([1.0, 0.6])]


def get_init_inputs():
    return [[12, 24, 36], 10.0, 1e-2]
