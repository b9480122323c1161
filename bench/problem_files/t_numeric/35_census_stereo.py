import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Stereo matching: 5x5 census transform on 8-bit images, Hamming cost volume,
    box aggregation, two horizontal SGM-like passes, and soft-argmin disparity."""

    def __init__(self, max_disp, agg, p1, p2, temperature):
        super().__init__()
        self.D, self.agg, self.p1, self.p2, self.temp = max_disp, agg, p1, p2, temperature

    def census(self, img):
        B, H, W = img.shape
        p = F.unfold(F.pad(img.unsqueeze(1).float(), (2, 2, 2, 2), mode="replicate"), 5).view(B, 25, H, W)
        bits = p > p[:, 12:13]
        return torch.cat((bits[:, :12], bits[:, 13:]), dim=1)

    def forward(self, left, right):
        cl, cr = self.census(left), self.census(right)
        B, _, H, W = cl.shape
        cost = torch.full((B, self.D, H, W), 24.0, device=left.device)
        for d in range(self.D):
            cost[:, d, :, d:] = (cl[:, :, :, d:] ^ cr[:, :, :, : W - d]).sum(dim=1).float()
        cost = F.avg_pool2d(cost, self.agg, stride=1, padding=self.agg // 2, count_include_pad=False)
        total = torch.zeros_like(cost)
        for order in (range(W), range(W - 1, -1, -1)):
            prev = None
            for x in order:
                c = cost[..., x]
                if prev is not None:
                    best = prev.amin(dim=1, keepdim=True)
                    up = F.pad(prev[:, 1:], (0, 0, 0, 1), value=1e4) + self.p1
                    dn = F.pad(prev[:, :-1], (0, 0, 1, 0), value=1e4) + self.p1
                    c = c + torch.minimum(torch.minimum(prev, up), torch.minimum(dn, best + self.p2)) - best
                total[..., x] += c
                prev = c
        prob = torch.softmax(-total / self.temp, dim=1)
        disp = (prob * torch.arange(self.D, device=left.device).view(1, -1, 1, 1)).sum(1)
        conf = prob.square().sum(dim=1)
        return disp, conf


def get_inputs():
    left = torch.randint(0, 256, (1, 44, 70))
    noise = torch.randint(-6, 7, left.shape)
    right = (torch.roll(left, -4, dims=2) + noise).clamp(0, 255)
    return [left, right]


def get_init_inputs():
    return [12, 5, 1.0, 4.0, 2.0]
