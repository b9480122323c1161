import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvBNLeaky(nn.Module):
    def __init__(self, c1, c2, k=3, s=1):
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, k // 2, bias=False)
        self.bn = nn.BatchNorm2d(c2, eps=1e-3, momentum=0.03)

    def forward(self, x):
        return F.leaky_relu(self.bn(self.conv(x)), 0.1)


def bbox_ciou(box1, box2, eps=1e-7):
    """Boxes as (x, y, w, h), shape (..., 4)."""
    (x1, y1, w1, h1), (x2, y2, w2, h2) = box1.chunk(4, -1), box2.chunk(4, -1)
    b1_x1, b1_x2, b1_y1, b1_y2 = x1 - w1 / 2, x1 + w1 / 2, y1 - h1 / 2, y1 + h1 / 2
    b2_x1, b2_x2, b2_y1, b2_y2 = x2 - w2 / 2, x2 + w2 / 2, y2 - h2 / 2, y2 + h2 / 2
    inter = (torch.min(b1_x2, b2_x2) - torch.max(b1_x1, b2_x1)).clamp(0) * (
        torch.min(b1_y2, b2_y2) - torch.max(b1_y1, b2_y1)).clamp(0)
    union = w1 * h1 + w2 * h2 - inter + eps
    iou = inter / union
    cw = torch.max(b1_x2, b2_x2) - torch.min(b1_x1, b2_x1)
    ch = torch.max(b1_y2, b2_y2) - torch.min(b1_y1, b2_y1)
    c2 = cw ** 2 + ch ** 2 + eps
    rho2 = ((b2_x1 + b2_x2 - b1_x1 - b1_x2) ** 2 + (b2_y1 + b2_y2 - b1_y1 - b1_y2) ** 2) / 4
    v = (4 / math.pi ** 2) * torch.pow(torch.atan(w2 / (h2 + eps)) - torch.atan(w1 / (h1 + eps)), 2)
    with torch.no_grad():
        alpha = v / (v - iou + (1 + eps))
    return (iou - (rho2 / c2 + v * alpha)).squeeze(-1)


class YOLOHead(nn.Module):
    def __init__(self, c, anchors, nc, stride):
        super().__init__()
        self.na, self.no, self.stride = len(anchors), nc + 5, stride
        self.conv = nn.Conv2d(c, self.na * self.no, 1)
        self.register_buffer("anchors", torch.tensor(anchors).float().view(1, self.na, 1, 1, 2))

    def forward(self, x):
        p = self.conv(x)
        bs, _, ny, nx = p.shape
        p = p.view(bs, self.na, self.no, ny, nx).permute(0, 1, 3, 4, 2).contiguous()
        yv, xv = torch.meshgrid(torch.arange(ny, device=x.device), torch.arange(nx, device=x.device), indexing="ij")
        grid = torch.stack((xv, yv), 2).view(1, 1, ny, nx, 2).float()
        y = p.sigmoid()
        xy = (y[..., 0:2] * 2.0 - 0.5 + grid) * self.stride
        wh = (y[..., 2:4] * 2) ** 2 * self.anchors
        decoded = torch.cat((xy, wh, y[..., 4:]), -1)
        return p.view(bs, -1, self.no), decoded.view(bs, -1, self.no)


class Model(nn.Module):
    """YOLOv3-tiny-like detector: two scales, box decoding, CIoU / objectness / class loss for assigned anchors."""

    def __init__(self, width, nc):
        super().__init__()
        w = width
        self.stem = nn.ModuleList([ConvBNLeaky(3, w), ConvBNLeaky(w, 2 * w), ConvBNLeaky(2 * w, 4 * w),
                                   ConvBNLeaky(4 * w, 8 * w)])
        self.c5 = ConvBNLeaky(8 * w, 16 * w)
        self.neck = ConvBNLeaky(16 * w, 8 * w, 1)
        self.lat = ConvBNLeaky(8 * w, 4 * w, 1)
        self.out5 = ConvBNLeaky(8 * w, 16 * w)
        self.out4 = ConvBNLeaky(4 * w + 8 * w, 8 * w)
        self.head5 = YOLOHead(16 * w, [[81, 82], [135, 169], [344, 319]], nc, 32)
        self.head4 = YOLOHead(8 * w, [[10, 14], [23, 27], [37, 58]], nc, 16)
        self.nc = nc

    def forward(self, img, anchor_idx, gt_box, gt_cls):
        x = img
        for conv in self.stem:
            x = F.max_pool2d(conv(x), 2, 2)
        c4 = x
        c5 = F.max_pool2d(self.c5(x), 2, 2)
        p5 = self.neck(c5)
        up = F.interpolate(self.lat(p5), scale_factor=2, mode="nearest")
        p4 = self.out4(torch.cat([up, c4], 1))
        raw5, dec5 = self.head5(self.out5(p5))
        raw4, dec4 = self.head4(p4)
        raw = torch.cat([raw5, raw4], 1)
        dec = torch.cat([dec5, dec4], 1)

        size = img.shape[-1]
        gather = anchor_idx.unsqueeze(-1).expand(-1, -1, raw.shape[-1])
        pos_raw, pos_dec = raw.gather(1, gather), dec.gather(1, gather)
        tbox = torch.cat([gt_box[..., :2], gt_box[..., 2:] * 0.5 + 0.02], -1) * size
        iou = bbox_ciou(pos_dec[..., :4], tbox)
        lbox = (1.0 - iou).mean()
        tobj = torch.zeros_like(raw[..., 4]).scatter(1, anchor_idx, iou.detach().clamp(0))
        lobj = F.binary_cross_entropy_with_logits(raw[..., 4], tobj)
        tcls = F.one_hot(gt_cls, self.nc).float() * 0.95 + 0.5 * 0.05
        lcls = F.binary_cross_entropy_with_logits(pos_raw[..., 5:], tcls)
        return 0.05 * lbox + lobj + 0.5 * lcls, dec


# 160 x 160 -> 3 * (5 * 5 + 10 * 10) = 375 anchors
def get_inputs():
    anchor_idx = torch.rand(2, 375).argsort(dim=1)[:, :12]
    return [torch.rand(2, 3, 160, 160), anchor_idx, torch.rand(2, 12, 4), torch.randint(0, 20, (2, 12))]


def get_init_inputs():
    return [16, 20]
