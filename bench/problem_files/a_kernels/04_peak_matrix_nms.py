import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Window-maximum peaks by equality, top-k decoded by division, matrix NMS, focal loss on splats."""

    def __init__(self, c, k):
        super().__init__()
        self.k = k
        self.t = nn.Parameter(torch.randn(c, 1, 1) * 0.1)
        self.sig = nn.Parameter(torch.tensor(2.0))

    def forward(self, hm, reg):
        b, c, h, w = hm.shape
        hm = hm + self.t
        peak = hm == F.max_pool2d(hm, 3, 1, 1)
        sc, ix = torch.where(peak, hm, -1e4).flatten(1).topk(self.k, dim=1)
        cls, rem = ix // (h * w), ix % (h * w)
        py, px = torch.div(rem, w, rounding_mode="floor"), rem % w
        r = reg.flatten(2).gather(2, rem.unsqueeze(1).expand(-1, 4, -1))
        cy, cx = py + torch.tanh(r[:, 0]), px + torch.tanh(r[:, 1])
        hh, ww = F.softplus(r[:, 2]) * 50 + 1, F.softplus(r[:, 3]) * 50 + 1
        box = torch.stack([cx - ww / 2, cy - hh / 2, cx + ww / 2, cy + hh / 2], -1)
        lt = torch.maximum(box[:, :, None, :2], box[:, None, :, :2])
        rb = torch.minimum(box[:, :, None, 2:], box[:, None, :, 2:])
        inter = (rb - lt).clamp(min=0).prod(-1)
        area = (box[..., 2:] - box[..., :2]).prod(-1)
        iou = inter / (area[:, :, None] + area[:, None] - inter)
        iou = (iou * (cls[:, :, None] == cls[:, None])).triu(1)
        comp = iou.amax(1)
        decay = torch.exp(-self.sig * (iou.square() - comp.unsqueeze(2).square())).amin(1)
        s2 = torch.sigmoid(sc) * decay
        keep = (iou < 0.5).all(1)
        gy = torch.arange(h, device=hm.device).view(1, 1, h, 1) - cy[..., None, None]
        gx = torch.arange(w, device=hm.device).view(1, 1, 1, w) - cx[..., None, None]
        q = gy.square() / hh.square()[..., None, None] + gx.square() / ww.square()[..., None, None]
        canvas = (torch.exp(-4 * q) * (s2 * keep)[..., None, None]).amax(1)
        p = torch.sigmoid(hm.amax(1))
        pos = canvas > 0.3
        fl = torch.where(pos, (1 - p).square() * p.log(), (1 - canvas) ** 4 * p.square() * (1 - p).log())
        return s2, box, cls, keep, -fl.sum((1, 2)) / pos.sum((1, 2)).clamp(min=1), peak.sum((2, 3))


def get_inputs():
    return [torch.randn(4, 3, 211, 157), torch.randn(4, 4, 211, 157)]


def get_init_inputs():
    return [3, 31]
