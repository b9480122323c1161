import torch
import torch.nn as nn
import torch.nn.functional as F


def pairwise_iou_cxcywh(a, b):
    tl = torch.max(a[:, None, :2] - a[:, None, 2:] / 2, b[None, :, :2] - b[None, :, 2:] / 2)
    br = torch.min(a[:, None, :2] + a[:, None, 2:] / 2, b[None, :, :2] + b[None, :, 2:] / 2)
    wh = (br - tl).clamp(min=0)
    inter = wh.prod(2)
    return inter / (a[:, 2:].prod(1)[:, None] + b[:, 2:].prod(1)[None] - inter + 1e-9)


class Model(nn.Module):
    """SimOTA style dynamic-k assignment followed by the loss under that assignment."""

    def __init__(self, num_classes, topk, center_radius):
        super().__init__()
        self.num_classes = num_classes
        self.topk = topk
        self.center_radius = center_radius

    @torch.no_grad()
    def assign(self, boxes, cls_logits, obj_logits, gt_boxes, gt_labels, centers, strides):
        iou = pairwise_iou_cxcywh(gt_boxes, boxes)
        joint = (cls_logits.sigmoid() * obj_logits.sigmoid()).sqrt()
        gt_onehot = F.one_hot(gt_labels, self.num_classes).float()
        G, A = iou.shape
        cls_cost = F.binary_cross_entropy(
            joint.unsqueeze(0).expand(G, A, -1),
            gt_onehot.unsqueeze(1).expand(G, A, -1),
            reduction="none",
        ).sum(-1)
        delta = (centers[None] - gt_boxes[:, None, :2]).abs()
        in_center = (delta < self.center_radius * strides[None, :, None]).all(-1)
        cost = cls_cost - 3.0 * torch.log(iou + 1e-8) + 1e5 * (~in_center).float()
        ks = iou.topk(self.topk, dim=1).values.sum(1).int().clamp(min=1)
        rank = cost.argsort(dim=1).argsort(dim=1)
        matching = rank < ks[:, None]
        conflict = matching.sum(0) > 1
        best = F.one_hot(cost.argmin(0), G).T.bool()
        matching = torch.where(conflict[None], best, matching)
        return matching, iou

    def forward(self, boxes, cls_logits, obj_logits, gt_boxes, gt_labels, centers, strides):
        matching, iou = self.assign(boxes, cls_logits, obj_logits, gt_boxes, gt_labels, centers, strides)
        fg = matching.any(0)
        gt_idx = matching.int().argmax(0)
        num_fg = fg.sum().clamp(min=1)
        soft = F.one_hot(gt_labels[gt_idx], self.num_classes) * iou.gather(0, gt_idx[None]).T
        lcls = F.binary_cross_entropy_with_logits(cls_logits, soft, reduction="none").sum(-1)
        lobj = F.binary_cross_entropy_with_logits(obj_logits.squeeze(-1), fg.float(), reduction="none")
        tgt = gt_boxes[gt_idx]
        tl = torch.max(boxes[:, :2] - boxes[:, 2:] / 2, tgt[:, :2] - tgt[:, 2:] / 2)
        br = torch.min(boxes[:, :2] + boxes[:, 2:] / 2, tgt[:, :2] + tgt[:, 2:] / 2)
        inter = (br - tl).clamp(min=0).prod(1)
        u = boxes[:, 2:].prod(1) + tgt[:, 2:].prod(1) - inter
        liou = 1 - (inter / (u + 1e-9)) ** 2
        zero = torch.zeros_like(liou)
        loss = 5.0 * torch.where(fg, liou, zero).sum() + torch.where(fg, lcls, zero).sum() + lobj.sum()
        return loss / num_fg, fg


def get_inputs():
    ys, xs = torch.meshgrid(torch.arange(28.0), torch.arange(30.0), indexing="ij")
    centers = torch.stack((xs, ys), -1).view(-1, 2) * 8 + 4
    A, G = centers.shape[0], 21
    boxes = torch.cat((centers + torch.randn(A, 2) * 4, 16 + 40 * torch.rand(A, 2)), 1)
    gt = torch.cat((20 + 190 * torch.rand(G, 2), 16 + 50 * torch.rand(G, 2)), 1)
    return [
        boxes,
        torch.randn(A, 13),
        torch.randn(A, 1),
        gt,
        torch.randint(0, 13, (G,)),
        centers,
        torch.full((A,), 8.0),
    ]


def get_init_inputs():
    return [13, 10, 2.5]
