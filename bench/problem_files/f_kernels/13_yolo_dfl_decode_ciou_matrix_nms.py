import torch
import torch.nn as nn


def pair_iou(a, b):
    lt = torch.maximum(a[..., :, None, :2], b[..., None, :, :2])
    rb = torch.minimum(a[..., :, None, 2:], b[..., None, :, 2:])
    inter = (rb - lt).clamp_min(0).prod(-1)
    area_a = (a[..., 2:] - a[..., :2]).prod(-1)
    area_b = (b[..., 2:] - b[..., :2]).prod(-1)
    return inter / (area_a[..., :, None] + area_b[..., None, :] - inter + 1e-7)


def ciou(a, b):
    iou = pair_iou(a, b)
    a, b = a.unsqueeze(-2), b.unsqueeze(-3)
    wa, ha = (a[..., 2:] - a[..., :2]).unbind(-1)
    wb, hb = (b[..., 2:] - b[..., :2]).unbind(-1)
    hull = torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])
    c2 = hull.square().sum(-1) + 1e-7
    rho2 = (a[..., :2] + a[..., 2:] - b[..., :2] - b[..., 2:]).square().sum(-1) / 4
    v = 4 / torch.pi ** 2 * (torch.atan(wb / hb) - torch.atan(wa / ha)).square()
    alpha = v / (v - iou + 1 + 1e-7)
    return iou - rho2 / c2 - alpha * v


class Model(nn.Module):
    def __init__(self, classes, bins, keep, sigma, strides):
        super().__init__()
        self.classes, self.bins, self.keep, self.sigma, self.strides = classes, bins, keep, sigma, strides
        self.temp = nn.Parameter(torch.rand(len(strides)) + 0.5)
        self.register_buffer("proj", torch.arange(bins, dtype=torch.float32))

    def forward(self, p3, p4, p5, gt, gt_label):
        boxes, scores = [], []
        for i, (p, s) in enumerate(zip((p3, p4, p5), self.strides)):
            b, _, h, w = p.shape
            gy, gx = torch.meshgrid(torch.arange(h, device=p.device), torch.arange(w, device=p.device), indexing="ij")
            anchor = torch.stack((gx, gy), -1).view(-1, 2) + 0.5
            reg, cls = p.flatten(2).split([4 * self.bins, self.classes], 1)
            dist = reg.view(b, 4, self.bins, h * w).softmax(2)
            dist = torch.einsum("bknl,n->blk", dist, self.proj)
            boxes.append(torch.cat((anchor - dist[..., :2], anchor + dist[..., 2:]), -1) * s)
            scores.append(torch.sigmoid(cls.transpose(1, 2) * self.temp[i]))
        boxes, scores = torch.cat(boxes, 1), torch.cat(scores, 1)
        overlap = ciou(boxes, gt)
        cls_of_gt = scores.gather(2, gt_label[:, None, :].expand(-1, scores.shape[1], -1))
        align = cls_of_gt.sqrt() * overlap.clamp_min(0).pow(3)
        best, which = align.topk(10, dim=1)
        assigned = torch.zeros_like(align).scatter(1, which, best)
        target = assigned / (assigned.amax(1, keepdim=True) + 1e-9) * overlap.clamp_min(0).amax(1, keepdim=True)
        loss = ((1 - overlap) * target).sum() / target.sum().clamp_min(1e-6)
        conf, label = scores.max(-1)
        conf, order = conf.topk(self.keep, dim=1)
        label = label.gather(1, order)
        kept = boxes.gather(1, order.unsqueeze(-1).expand(-1, -1, 4))
        iou = pair_iou(kept, kept) * (label[:, :, None] == label[:, None, :])
        iou = iou.triu(1)
        comp = iou.amax(1, keepdim=True).transpose(1, 2)
        decay = (torch.exp(-self.sigma * iou.square()) / torch.exp(-self.sigma * comp.square())).amin(1)
        return {"boxes": kept, "scores": conf * decay, "labels": label, "box_loss": loss, "target": target.amax(-1)}


def get_inputs():
    n = 4 * 12 + 9
    lo = torch.rand(2, 7, 2) * 120
    gt = torch.cat((lo, lo + 12 + 60 * torch.rand(2, 7, 2)), -1)
    return [torch.randn(2, n, 21, 27), torch.randn(2, n, 11, 13), torch.randn(2, n, 5, 7), gt, torch.randint(0, 9, (2, 7))]


def get_init_inputs():
    return [9, 12, 101, 2.0, [8, 16, 32]]
