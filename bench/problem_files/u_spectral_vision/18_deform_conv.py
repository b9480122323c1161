import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Modulated deformable 3x3 convolution (DCNv2), bilinear sampling by hand-written gathers."""

    def __init__(self, inc=8, outc=12, kernel_size=3, padding=1, stride=1):
        super().__init__()
        self.ks = kernel_size
        self.padding = padding
        self.stride = stride
        n = kernel_size * kernel_size
        self.pre = nn.Conv2d(inc, inc, 3, padding=1)
        self.p_conv = nn.Conv2d(inc, 2 * n, 3, padding=1, stride=stride)
        self.m_conv = nn.Conv2d(inc, n, 3, padding=1, stride=stride)
        nn.init.normal_(self.p_conv.weight, std=0.1)
        nn.init.constant_(self.m_conv.bias, 0.5)
        self.conv = nn.Conv2d(inc, outc, kernel_size, stride=kernel_size, bias=False)

    def _get_p(self, offset):
        b, n2, h, w = offset.shape
        N, dev, dt = n2 // 2, offset.device, offset.dtype
        r = torch.arange(-(self.ks - 1) // 2, (self.ks - 1) // 2 + 1, device=dev)
        pn_y, pn_x = torch.meshgrid(r, r, indexing="ij")
        p_n = torch.cat([pn_y.flatten(), pn_x.flatten()], 0).view(1, 2 * N, 1, 1).to(dt)
        p0y, p0x = torch.meshgrid(torch.arange(1, h * self.stride + 1, self.stride, device=dev),
                                  torch.arange(1, w * self.stride + 1, self.stride, device=dev), indexing="ij")
        p_0 = torch.cat([p0y[None].repeat(N, 1, 1), p0x[None].repeat(N, 1, 1)], 0).unsqueeze(0).to(dt)
        return p_0 + p_n + offset

    def _get_x_q(self, x, qy, qx):
        # x (B, C, H, W); qy, qx (B, h, w, N) long
        b, h, w, N = qy.shape
        c, W = x.size(1), x.size(3)
        index = (qy * W + qx).unsqueeze(1).expand(-1, c, -1, -1, -1).reshape(b, c, -1)
        return x.reshape(b, c, -1).gather(dim=-1, index=index).view(b, c, h, w, N)

    def forward(self, x):
        x = F.relu(self.pre(x))
        offset = self.p_conv(x)
        m = torch.sigmoid(self.m_conv(x))
        N = offset.size(1) // 2
        x = F.pad(x, (self.padding,) * 4)
        H, W = x.shape[-2:]
        p = self._get_p(offset).permute(0, 2, 3, 1)          # (B, h, w, 2N)
        py, px = p[..., :N].clamp(0, H - 1), p[..., N:].clamp(0, W - 1)
        y0 = py.detach().floor().long().clamp(max=H - 2)
        x0 = px.detach().floor().long().clamp(max=W - 2)
        y1, x1 = y0 + 1, x0 + 1

        g_lt = (1 + (y0.type_as(py) - py)) * (1 + (x0.type_as(px) - px))
        g_rb = (1 - (y1.type_as(py) - py)) * (1 - (x1.type_as(px) - px))
        g_lb = (1 + (y0.type_as(py) - py)) * (1 - (x1.type_as(px) - px))
        g_rt = (1 - (y1.type_as(py) - py)) * (1 + (x0.type_as(px) - px))

        xo = (g_lt.unsqueeze(1) * self._get_x_q(x, y0, x0) + g_rb.unsqueeze(1) * self._get_x_q(x, y1, x1)
              + g_lb.unsqueeze(1) * self._get_x_q(x, y0, x1) + g_rt.unsqueeze(1) * self._get_x_q(x, y1, x0))
        xo = xo * m.permute(0, 2, 3, 1).unsqueeze(1)
        b, c, h, w, _ = xo.shape
        xo = torch.cat([xo[..., s:s + self.ks].contiguous().view(b, c, h, w * self.ks)
                        for s in range(0, N, self.ks)], dim=-1)
        xo = xo.contiguous().view(b, c, h * self.ks, w * self.ks)
        return self.conv(xo)


def get_inputs():
    return [torch.randn(2, 8, 19, 23)]


def get_init_inputs():
    return [8, 12, 3, 1, 1]
