import torch
import torch.nn as nn
import torch.nn.functional as F


class Conv3x3(nn.Module):
    def __init__(self, i, o, use_refl=True):
        super().__init__()
        self.pad = nn.ReflectionPad2d(1) if use_refl else nn.ZeroPad2d(1)
        self.conv = nn.Conv2d(int(i), int(o), 3)

    def forward(self, x):
        return self.conv(self.pad(x))


class SSIM(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.AvgPool2d(3, 1)
        self.refl = nn.ReflectionPad2d(1)
        self.C1, self.C2 = 0.01 ** 2, 0.03 ** 2

    def forward(self, x, y):
        x, y = self.refl(x), self.refl(y)
        mu_x, mu_y = self.pool(x), self.pool(y)
        sigma_x = self.pool(x ** 2) - mu_x ** 2
        sigma_y = self.pool(y ** 2) - mu_y ** 2
        sigma_xy = self.pool(x * y) - mu_x * mu_y
        n = (2 * mu_x * mu_y + self.C1) * (2 * sigma_xy + self.C2)
        d = (mu_x ** 2 + mu_y ** 2 + self.C1) * (sigma_x + sigma_y + self.C2)
        return torch.clamp((1 - n / d) / 2, 0, 1)


def rot_from_axisangle(vec):
    angle = torch.norm(vec, 2, 2, True)
    axis = vec / (angle + 1e-7)
    ca, sa = torch.cos(angle), torch.sin(angle)
    C = 1 - ca
    x, y, z = axis[..., 0].unsqueeze(1), axis[..., 1].unsqueeze(1), axis[..., 2].unsqueeze(1)
    rot = torch.zeros((vec.shape[0], 4, 4)).to(vec)
    rot[:, 0, 0] = torch.squeeze(x * x * C + ca)
    rot[:, 0, 1] = torch.squeeze(x * y * C - z * sa)
    rot[:, 0, 2] = torch.squeeze(z * x * C + y * sa)
    rot[:, 1, 0] = torch.squeeze(x * y * C + z * sa)
    rot[:, 1, 1] = torch.squeeze(y * y * C + ca)
    rot[:, 1, 2] = torch.squeeze(y * z * C - x * sa)
    rot[:, 2, 0] = torch.squeeze(z * x * C - y * sa)
    rot[:, 2, 1] = torch.squeeze(y * z * C + x * sa)
    rot[:, 2, 2] = torch.squeeze(z * z * C + ca)
    rot[:, 3, 3] = 1
    return rot


class Model(nn.Module):
    """Self-supervised depth: dispnet with skips, a pose net, view synthesis of two neighbours at every scale,
    minimum reprojection with automatic masking, edge-aware smoothness of the mean-normalised disparity."""

    def __init__(self, widths, height, width):
        super().__init__()
        self.h, self.w = height, width
        chain = [3] + widths
        self.enc = nn.ModuleList([
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True), nn.Conv2d(b, b, 3, 1, 1), nn.ReLU(True))
            for a, b in zip(chain[:-1], chain[1:])
        ])
        self.up0, self.up1, self.disp = nn.ModuleDict(), nn.ModuleDict(), nn.ModuleDict()
        for i in range(len(widths) - 1, -1, -1):
            o = widths[max(i - 1, 0)]
            self.up0[str(i)] = nn.Sequential(Conv3x3(widths[i], o), nn.ELU(inplace=True))
            self.up1[str(i)] = nn.Sequential(Conv3x3(o + (widths[i - 1] if i > 0 else 0), o), nn.ELU(inplace=True))
            if i < 2:
                self.disp[str(i)] = Conv3x3(o, 1)
        self.pose = nn.Sequential(nn.Conv2d(6, 16, 7, 2, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 6, 1))
        self.ssim = SSIM()
        ys, xs = torch.meshgrid(torch.arange(height).float(), torch.arange(width).float(), indexing="ij")
        self.register_buffer("pix", torch.stack([xs, ys, torch.ones_like(xs)]).view(1, 3, -1), persistent=False)

    def depths(self, img):
        feats = []
        x = (img - 0.45) / 0.225
        for e in self.enc:
            x = e(x)
            feats.append(x)
        out = {}
        for i in range(len(feats) - 1, -1, -1):
            x = self.up0[str(i)](x)
            x = [F.interpolate(x, size=feats[i - 1].shape[-2:] if i > 0 else img.shape[-2:], mode="nearest")]
            if i > 0:
                x += [feats[i - 1]]
            x = self.up1[str(i)](torch.cat(x, 1))
            if str(i) in self.disp:
                out[i] = torch.sigmoid(self.disp[str(i)](x))
        return out

    def warp(self, img, depth, T, K):
        cam = torch.matmul(torch.inverse(K), self.pix) * depth.flatten(1).unsqueeze(1)
        cam = torch.cat([cam, torch.ones_like(cam[:, :1])], 1)
        p = torch.matmul(torch.matmul(K, T[:, :3]), cam)
        uv = p[:, :2] / (p[:, 2:3] + 1e-7)
        uv = uv.view(-1, 2, self.h, self.w).permute(0, 2, 3, 1)
        size = torch.tensor([self.w - 1, self.h - 1], device=uv.device, dtype=uv.dtype)
        return F.grid_sample(img, (uv / size - 0.5) * 2, padding_mode="border", align_corners=True)

    def reproject(self, a, b):
        return 0.85 * self.ssim(a, b).mean(1, True) + 0.15 * (a - b).abs().mean(1, True)

    def forward(self, target, prev, nxt, K):
        disps = self.depths(target)
        poses = []
        for src, invert in ((prev, True), (nxt, False)):
            v = 0.05 * self.pose(torch.cat([src, target] if invert else [target, src], 1)).mean(3).mean(2).view(-1, 1, 6)
            R, t = rot_from_axisangle(v[..., :3]), v[..., 3:]
            M = torch.eye(4, device=v.device, dtype=v.dtype).repeat(v.size(0), 1, 1)
            M[:, :3, 3] = -t.squeeze(1) if invert else t.squeeze(1)
            poses.append(torch.matmul(R.transpose(1, 2), M) if invert else torch.matmul(M, R))
        identity = torch.cat([self.reproject(s, target) for s in (prev, nxt)], 1)
        total = 0
        for scale, disp in disps.items():
            full = F.interpolate(disp, [self.h, self.w], mode="bilinear", align_corners=False)
            depth = 1 / (0.01 + (10 - 0.01) * full)
            losses = torch.cat([self.reproject(self.warp(s, depth, T, K), target) for s, T in zip((prev, nxt), poses)], 1)
            best, _ = torch.cat([identity, losses], 1).min(dim=1)
            norm = disp / (disp.mean(2, True).mean(3, True) + 1e-7)
            small = F.interpolate(target, disp.shape[-2:], mode="area")
            gx = (norm[..., :-1] - norm[..., 1:]).abs() * torch.exp(-(small[..., :-1] - small[..., 1:]).abs().mean(1, True))
            gy = (norm[..., :-1, :] - norm[..., 1:, :]).abs() * torch.exp(-(small[..., :-1, :] - small[..., 1:, :]).abs().mean(1, True))
            total = total + best.mean() + 1e-3 * (gx.mean() + gy.mean()) / 2 ** scale
        return {"loss": total / len(disps), "disp": disps[0], "pose": torch.stack(poses, 1)}


def get_inputs():
    base = F.interpolate(torch.rand(2, 3, 9, 12), size=(46, 62), mode="bicubic", align_corners=False).clamp(0, 1)
    imgs = [(base.roll(s, -1) + 0.05 * torch.rand_like(base)).clamp(0, 1) for s in (0, 1, -1)]
    K = torch.tensor([[36.0, 0, 31], [0, 49, 23], [0, 0, 1]]).repeat(2, 1, 1)
    return [*imgs, K]


def get_init_inputs():
    return [[18, 26, 38], 46, 62]
