import torch
import torch.nn as nn
import torch.nn.functional as F


def area(b):
    return (b[..., 2] - b[..., 0]).clamp(min=0) * (b[..., 3] - b[..., 1]).clamp(min=0)


def iou(a, b):
    lt = torch.max(a[..., :, None, :2], b[..., None, :, :2])
    rb = torch.min(a[..., :, None, 2:], b[..., None, :, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    return inter / (area(a)[..., :, None] + area(b)[..., None, :] - inter + 1e-6)


def giou(a, b):
    inter_lt, inter_rb = torch.max(a[:, :2], b[:, :2]), torch.min(a[:, 2:], b[:, 2:])
    inter = (inter_rb - inter_lt).clamp(min=0).prod(1)
    un = area(a) + area(b) - inter
    hull = (torch.max(a[:, 2:], b[:, 2:]) - torch.min(a[:, :2], b[:, :2])).prod(1)
    return inter / (un + 1e-6) - (hull - un) / (hull + 1e-6)


class Model(nn.Module):
    """One stage detector head: anchors, assignment by IoU, focal + GIoU losses, fixed size NMS,
    RoI align by grid_sample, mask head."""

    def __init__(self, c=16, n_cls=4, topn=24):
        super().__init__()
        self.n_cls, self.topn = n_cls, topn
        self.backbone = nn.Sequential(nn.Conv2d(3, c, 3, 2, 1), nn.GroupNorm(4, c), nn.SiLU(inplace=True),
                                      nn.Conv2d(c, c, 3, 2, 1), nn.SiLU())
        self.down = nn.Conv2d(c, c, 3, 2, 1)
        self.lateral = nn.Conv2d(c, c, 1)
        self.cls = nn.Conv2d(c, 2 * n_cls, 3, padding=1)
        self.box = nn.Conv2d(c, 2 * 4, 3, padding=1)
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(())) for _ in range(2)])
        self.mask = nn.Sequential(nn.ConvTranspose2d(c, 8, 2, 2), nn.ReLU(), nn.Conv2d(8, n_cls, 1))
        nn.init.constant_(self.cls.bias, -2.0)

    def anchors(self, h, w, stride, dev):
        ys, xs = torch.meshgrid(torch.arange(h, device=dev), torch.arange(w, device=dev), indexing="ij")
        ctr = (torch.stack([xs, ys], -1).float() + 0.5) * stride
        wh = torch.tensor([[2.0, 2.0], [3.0, 1.5]], device=dev) * stride
        ctr = ctr[:, :, None].expand(-1, -1, 2, -1)
        return torch.cat([ctr - wh / 2, ctr + wh / 2], -1).view(-1, 4)

    def decode(self, anc, t):
        c = (anc[:, :2] + anc[:, 2:]) * 0.5
        s = anc[:, 2:] - anc[:, :2]
        cc = c + t[..., :2] * s * 0.1
        ss = s * torch.exp((t[..., 2:] * 0.2).clamp(max=4.135))
        return torch.cat((cc - 0.5 * ss, cc + 0.5 * ss), dim=-1)

    @torch.no_grad()
    def nms(self, boxes, scores, labels):
        off = labels.to(boxes.dtype)[..., None] * 1000.0
        b = boxes + off
        sup = iou(b, b) > 0.5
        n = scores.size(1)
        keep = torch.ones_like(scores, dtype=torch.bool)
        upper = torch.ones(n, n, dtype=torch.bool, device=b.device).triu(1)
        sup = sup & upper
        for i in range(n):
            keep &= ~(sup[:, i] & keep[:, i: i + 1])
        return keep

    def roi(self, feat, boxes, size=5):
        B, N, _ = boxes.shape
        H, W = feat.shape[-2:]
        lin = (torch.arange(size, device=feat.device, dtype=feat.dtype) + 0.5) / size
        x = boxes[..., 0, None] + (boxes[..., 2, None] - boxes[..., 0, None]) * lin
        y = boxes[..., 1, None] + (boxes[..., 3, None] - boxes[..., 1, None]) * lin
        gx = (x / (4 * W) * 2 - 1)[:, :, None, :].expand(B, N, size, size)
        gy = (y / (4 * H) * 2 - 1)[:, :, :, None].expand(B, N, size, size)
        g = torch.stack([gx, gy], -1).view(B, N * size, size, 2)
        r = F.grid_sample(feat, g, align_corners=False)
        return r.view(B, -1, N, size, size).transpose(1, 2)

    def forward(self, img, gt, gt_cls, gt_valid):
        B, _, H, W = img.shape
        p1 = self.backbone(img)
        p2 = self.down(p1)
        p1 = self.lateral(p1) + F.interpolate(p2, size=p1.shape[-2:], mode="nearest")
        logits, deltas, anc = [], [], []
        for f, stride, sc in zip((p1, p2), (4, 8), self.scales):
            c = self.cls(f).permute(0, 2, 3, 1).reshape(B, -1, self.n_cls)
            d = (self.box(f) * sc).permute(0, 2, 3, 1).reshape(B, -1, 4)
            logits.append(c), deltas.append(d)
            anc.append(self.anchors(*f.shape[-2:], stride, img.device))
        logits, deltas, anc = torch.cat(logits, 1), torch.cat(deltas, 1), torch.cat(anc)
        wh = gt[..., 2:] * 12 + 4
        xy = gt[..., :2] * (H - 16)
        boxes = torch.cat([xy, xy + wh], -1)
        # assignment
        m = iou(anc.expand(B, -1, -1), boxes) * gt_valid[:, None, :]
        best, who = m.max(2)
        force = m.max(1, keepdim=True).values
        low = ((m == force) & (force > 0)).any(2)
        fg = (best > 0.4) | low
        ign = (best > 0.3) & ~fg
        tcls = torch.take_along_dim(gt_cls, who, 1)
        onehot = F.one_hot(tcls, self.n_cls).float() * fg.unsqueeze(-1)
        p = logits.sigmoid()
        ce = F.binary_cross_entropy_with_logits(logits, onehot, reduction="none")
        pt = p * onehot + (1 - p) * (1 - onehot)
        focal = ce * (1 - pt).pow(2.0) * (0.25 * onehot + 0.75 * (1 - onehot))
        nfg = fg.sum().clamp(min=1)
        lcls = (focal.sum(-1) * ~ign).sum() / nfg
        pred = self.decode(anc, deltas)
        tb = torch.gather(boxes, 1, who[..., None].expand(-1, -1, 4))
        lbox = ((1 - giou(pred.view(-1, 4), tb.view(-1, 4))).view(B, -1) * fg).sum() / nfg
        # inference part
        sc, flat = p.flatten(1).topk(self.topn, dim=1)
        ai, lab = flat // self.n_cls, flat % self.n_cls
        bx = pred.gather(1, ai.unsqueeze(-1).repeat(1, 1, 4))
        bx = torch.stack([bx[..., 0].clamp(0, W), bx[..., 1].clamp(0, H), bx[..., 2].clamp(0, W), bx[..., 3].clamp(0, H)], -1)
        keep = self.nms(bx, sc, lab)
        sc = sc * keep
        r = self.roi(p1, bx.detach())
        mk = self.mask(r.flatten(0, 1)).unflatten(0, (B, self.topn))
        mk = mk.gather(2, lab[:, :, None, None, None].expand(-1, -1, 1, 10, 10)).squeeze(2).sigmoid()
        mk = mk * keep[..., None, None]
        return lcls, lbox, bx, sc, lab.masked_fill(~keep, -1), mk, nfg


def get_inputs():
    B, n = 2, 6
    return [torch.randn(B, 3, 64, 64), torch.rand(B, n, 4), torch.randint(0, 4, (B, n)), torch.rand(B, n) > 0.3]


def get_init_inputs():
    return [16, 4, 24]
