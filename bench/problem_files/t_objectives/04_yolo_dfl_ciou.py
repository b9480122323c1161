import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def bbox_iou_aligned(b1, b2, kind="ciou", eps=1e-7):
    x1, y1, x2, y2 = b1.chunk(4, -1)
    X1, Y1, X2, Y2 = b2.chunk(4, -1)
    w1, h1 = x2 - x1, y2 - y1 + eps
    w2, h2 = X2 - X1, Y2 - Y1 + eps
    inter = (torch.minimum(x2, X2) - torch.maximum(x1, X1)).clamp(0) * (
        torch.minimum(y2, Y2) - torch.maximum(y1, Y1)
    ).clamp(0)
    union = w1 * h1 + w2 * h2 - inter + eps
    iou = inter / union
    cw = torch.maximum(x2, X2) - torch.minimum(x1, X1)
    ch = torch.maximum(y2, Y2) - torch.minimum(y1, Y1)
    if kind == "giou":
        c_area = cw * ch + eps
        return iou - (c_area - union) / c_area
    c2 = cw.pow(2) + ch.pow(2) + eps
    rho2 = ((X1 + X2 - x1 - x2).pow(2) + (Y1 + Y2 - y1 - y2).pow(2)) / 4
    if kind == "diou":
        return iou - rho2 / c2
    v = (4 / math.pi ** 2) * ((w2 / h2).atan() - (w1 / h1).atan()).pow(2)
    with torch.no_grad():
        alpha = v / (v - iou + (1 + eps))
    return iou - (rho2 / c2 + v * alpha)


class DFLoss(nn.Module):
    def __init__(self, reg_max=16):
        super().__init__()
        self.reg_max = reg_max

    def forward(self, pred_dist, target):
        target = target.clamp(0, self.reg_max - 1 - 0.01)
        tl = target.long()
        tr = tl + 1
        wl = tr - target
        wr = 1 - wl
        left = F.cross_entropy(pred_dist, tl.view(-1), reduction="none").view(tl.shape) * wl
        right = F.cross_entropy(pred_dist, tr.view(-1), reduction="none").view(tl.shape) * wr
        return (left + right).mean(-1, keepdim=True)


class Model(nn.Module):
    def __init__(self, reg_max, kinds):
        super().__init__()
        self.reg_max = reg_max
        self.kinds = kinds
        self.dfl = DFLoss(reg_max)
        self.register_buffer("proj", torch.arange(reg_max, dtype=torch.float))

    def decode(self, anchors, dist):
        b, n, _ = dist.shape
        d = dist.view(b, n, 4, self.reg_max).softmax(3).matmul(self.proj)
        lt, rb = d.chunk(2, -1)
        return torch.cat((anchors - lt, anchors + rb), -1)

    def forward(self, pred_dist, anchors, target_boxes, target_scores, fg):
        boxes = self.decode(anchors, pred_dist)
        weight = (target_scores.sum(-1) * fg).unsqueeze(-1)
        norm = target_scores.sum().clamp(min=1.0)
        total = 0.0
        for kind, gain in self.kinds:
            iou = bbox_iou_aligned(boxes, target_boxes, kind)
            total = total + gain * ((1.0 - iou) * weight).sum() / norm
        x1y1, x2y2 = target_boxes.chunk(2, -1)
        ltrb = torch.cat((anchors - x1y1, x2y2 - anchors), -1)
        b, n, _ = ltrb.shape
        ldfl = self.dfl(pred_dist.reshape(-1, self.reg_max), ltrb.view(b * n, 4)).view(b, n, 1)
        return total + 1.5 * (ldfl * weight).sum() / norm


def get_inputs():
    b, n = 2, 189
    anchors = torch.rand(n, 2) * 20
    tb = torch.cat((anchors - 1 - 6 * torch.rand(b, n, 2), anchors + 1 + 6 * torch.rand(b, n, 2)), -1)
    return [
        torch.randn(b, n, 64),
        anchors,
        tb,
        torch.rand(b, n, 10) * (torch.rand(b, n, 10) > 0.8),
        (torch.rand(b, n) > 0.5).float(),
    ]


def get_init_inputs():
    return [16, [("ciou", 5.0), ("giou", 1.0), ("diou", 0.5)]]
