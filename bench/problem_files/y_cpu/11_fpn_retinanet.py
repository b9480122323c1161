import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def sigmoid_focal_loss(inputs, targets, alpha=0.25, gamma=2.0):
    p = torch.sigmoid(inputs)
    ce_loss = F.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
    p_t = p * targets + (1 - p) * (1 - targets)
    loss = ce_loss * ((1 - p_t) ** gamma)
    alpha_t = alpha * targets + (1 - alpha) * (1 - targets)
    return alpha_t * loss


class BasicBlock(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(o)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.down(x)
        return self.relu(out)


class FPN(nn.Module):
    def __init__(self, chans, out):
        super().__init__()
        self.inner = nn.ModuleList([nn.Conv2d(c, out, 1) for c in chans])
        self.layer = nn.ModuleList([nn.Conv2d(out, out, 3, padding=1) for _ in chans])
        self.p6 = nn.Conv2d(out, out, 3, 2, 1)

    def forward(self, feats):
        last = self.inner[-1](feats[-1])
        results = [self.layer[-1](last)]
        for idx in range(len(feats) - 2, -1, -1):
            lat = self.inner[idx](feats[idx])
            top_down = F.interpolate(last, size=lat.shape[-2:], mode="nearest")
            last = lat + top_down
            results.insert(0, self.layer[idx](last))
        results.append(self.p6(results[-1]))
        return results


class Head(nn.Module):
    def __init__(self, ch, anchors, out, n_conv=2, prior=None):
        super().__init__()
        convs = []
        for _ in range(n_conv):
            convs += [nn.Conv2d(ch, ch, 3, padding=1), nn.GroupNorm(8, ch), nn.ReLU(inplace=True)]
        self.conv = nn.Sequential(*convs)
        self.pred = nn.Conv2d(ch, anchors * out, 3, padding=1)
        self.out = out
        nn.init.normal_(self.pred.weight, std=0.01)
        nn.init.constant_(self.pred.bias, 0.0 if prior is None else -math.log((1 - prior) / prior))

    def forward(self, feats):
        outs = []
        for f in feats:
            y = self.pred(self.conv(f))
            N, _, H, W = y.shape
            y = y.view(N, -1, self.out, H, W).permute(0, 3, 4, 1, 2)
            outs.append(y.reshape(N, -1, self.out))
        return torch.cat(outs, dim=1)


class Model(nn.Module):
    """ResNet-ish backbone + FPN + shared RetinaNet heads; focal and smooth-L1
    losses against pre-matched anchors (-1 ignore, 0 background, k class)."""

    def __init__(self, chans, fpn_ch, num_classes, anchors):
        super().__init__()
        self.num_classes = num_classes
        self.stem = nn.Sequential(
            nn.Conv2d(3, chans[0], 7, 2, 3, bias=False), nn.BatchNorm2d(chans[0]),
            nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
        )
        ins = [chans[0]] + chans[:-1]
        self.stages = nn.ModuleList([BasicBlock(i, o, 2) for i, o in zip(ins, chans)])
        self.fpn = FPN(chans, fpn_ch)
        self.cls_head = Head(fpn_ch, anchors, num_classes, prior=0.01)
        self.box_head = Head(fpn_ch, anchors, 4)

    def forward(self, images, labels, box_targets):
        x = self.stem(images)
        feats = []
        for stage in self.stages:
            x = stage(x)
            feats.append(x)
        pyramid = self.fpn(feats)
        logits, deltas = self.cls_head(pyramid), self.box_head(pyramid)
        valid = labels >= 0
        fg = labels > 0
        num_fg = fg.sum().clamp(min=1).to(logits.dtype)
        onehot = F.one_hot(labels.clamp(min=0), self.num_classes + 1)[..., 1:].to(logits.dtype)
        cls = sigmoid_focal_loss(logits, onehot).sum(-1)
        cls_loss = torch.where(valid, cls, torch.zeros_like(cls)).sum() / num_fg
        box_loss = F.smooth_l1_loss(deltas[fg], box_targets[fg], beta=0.11, reduction="sum") / num_fg
        return cls_loss + box_loss, cls_loss, box_loss, logits


def get_inputs():
    g = torch.Generator().manual_seed(10)
    A = 6 * (25 * 20 + 13 * 10 + 7 * 5 + 4 * 3)
    r = torch.rand(2, A, generator=g)
    labels = torch.where(r < 0.02, torch.randint(1, 18, (2, A), generator=g), torch.zeros(2, A).long())
    labels[r > 0.93] = -1
    return [torch.randn(2, 3, 200, 156, generator=g), labels, 0.5 * torch.randn(2, A, 4, generator=g)]


def get_init_inputs():
    return [[48, 96, 160], 72, 17, 6]
