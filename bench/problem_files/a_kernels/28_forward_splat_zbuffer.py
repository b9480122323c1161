import torch
import torch.nn as nn


class Model(nn.Module):
    """Forward warp: depth test by scatter amin and gather, four-corner scatter_add, hole fill, cycle."""

    def __init__(self, c):
        super().__init__()
        self.fill = nn.Parameter(torch.randn(c))
        self.beta = nn.Parameter(torch.tensor(0.5))

    def forward(self, img, flow, depth):
        b, c, h, w = img.shape
        ys = torch.arange(h, device=img.device).view(1, h, 1)
        xs = torch.arange(w, device=img.device).view(1, 1, w)
        tx, ty = xs + flow[:, 0], ys + flow[:, 1]
        nx, ny = torch.round(tx.detach()).long(), torch.round(ty.detach()).long()
        inb = (nx >= 0) & (nx < w) & (ny >= 0) & (ny < h)
        dst = torch.where(inb, ny * w + nx, h * w).flatten(1)
        far = torch.full((b, h * w + 1), 99.0, device=img.device, dtype=img.dtype)
        zb = far.scatter_reduce(1, dst, depth.flatten(1), "amin")
        zg = zb.gather(1, dst).view(b, h, w)
        front = inb & (depth <= zg)
        wt = torch.exp(-torch.nn.functional.softplus(self.beta) * (depth - zg)) * inb
        x0, y0 = torch.floor(tx), torch.floor(ty)
        fx, fy = tx - x0.detach(), ty - y0.detach()
        num = torch.zeros(b, c, h * w, device=img.device, dtype=img.dtype)
        den = torch.zeros(b, h * w, device=img.device, dtype=img.dtype)
        for dy in (0, 1):
            for dx in (0, 1):
                px, py = x0.long() + dx, y0.long() + dy
                ok = (px >= 0) & (px < w) & (py >= 0) & (py < h)
                k = (fx if dx else 1 - fx) * (fy if dy else 1 - fy) * wt * ok
                ix = (py.clamp(0, h - 1) * w + px.clamp(0, w - 1)).flatten(1)
                num = num.scatter_add(2, ix.unsqueeze(1).expand(-1, c, -1), (img * k.unsqueeze(1)).flatten(2))
                den = den.scatter_add(1, ix, k.flatten(1))
        hole = (den < 0.05).view(b, 1, h, w)
        out = (num / den.clamp(min=0.05).unsqueeze(1)).view(b, c, h, w)
        out = torch.where(hole, self.fill.view(1, c, 1, 1), out)
        bi = torch.arange(b, device=img.device).view(b, 1, 1)
        cyc = out[bi, :, ny.clamp(0, h - 1), nx.clamp(0, w - 1)].permute(0, 3, 1, 2)
        photo = torch.where(front.unsqueeze(1), torch.sqrt((cyc - img).square() + 1e-4), 0.0).sum((1, 2, 3))
        photo = photo / front.sum((1, 2)).clamp(min=1)
        hits = torch.zeros_like(dst[:, :1]).expand(-1, h * w + 1).scatter_add(1, dst, torch.ones_like(dst))
        return out, photo, wt, hits[:, :-1].view(b, h, w), hole.sum((1, 2, 3)), front


def get_inputs():
    return [torch.randn(3, 5, 181, 239), torch.randn(3, 2, 181, 239) * 4, torch.rand(3, 181, 239) * 5]


def get_init_inputs():
    return [5]
