import torch
import torch.nn as nn
import torch.nn.functional as F


class VNBatchNorm(nn.Module):
    """Batch norm on the lengths of the vectors, directions kept."""

    def __init__(self, c, dim):
        super().__init__()
        self.bn = nn.BatchNorm1d(c) if dim in (3, 4) else nn.BatchNorm2d(c)

    def forward(self, x):
        norm = torch.sqrt((x * x).sum(2) + 1e-2)
        return x / norm.unsqueeze(2) * self.bn(norm).unsqueeze(2)


class VNLinearLeakyReLU(nn.Module):
    """Linear over the channel axis (1), then a leaky ReLU along a learned direction per channel."""

    def __init__(self, c_in, c_out, dim=5, share=False, slope=0.2, norm=True):
        super().__init__()
        self.lin = nn.Linear(c_in, c_out, bias=False)
        self.dir = nn.Linear(c_in, 1 if share else c_out, bias=False)
        self.bn, self.slope = VNBatchNorm(c_out, dim) if norm else None, slope

    def forward(self, x):
        p = self.lin(x.transpose(1, -1)).transpose(1, -1)
        if self.bn is not None:
            p = self.bn(p)
        d = self.dir(x.transpose(1, -1)).transpose(1, -1)
        dot = (p * d).sum(2, keepdim=True)
        mask = (dot >= 0).to(p.dtype)
        d_sq = (d * d).sum(2, keepdim=True)
        return self.slope * p + (1 - self.slope) * (mask * p + (1 - mask) * (p - (dot / (d_sq + 0.1)) * d))


class VNStdFeature(nn.Module):
    """Predicts a frame per point and projects the vectors on it: rotation-invariant features."""

    def __init__(self, c):
        super().__init__()
        self.vn1, self.vn2 = VNLinearLeakyReLU(c, c // 2, 4), VNLinearLeakyReLU(c // 2, c // 4, 4)
        self.lin = nn.Linear(c // 4, 2, bias=False)

    def forward(self, x):
        z = self.lin(self.vn2(self.vn1(x)).transpose(1, -1)).transpose(1, -1)
        v1 = z[:, 0]
        u1 = v1 / torch.sqrt((v1 * v1).sum(1, keepdim=True) + 1e-2)
        v2 = z[:, 1] - (z[:, 1] * u1).sum(1, keepdim=True) * u1
        u2 = v2 / torch.sqrt((v2 * v2).sum(1, keepdim=True) + 1e-2)
        frame = torch.stack([u1, u2, torch.cross(u1, u2, dim=1)], dim=1).transpose(1, 2)
        return torch.einsum("bijm,bjkm->bikm", x, frame), frame


def graph_feature(x, idx, cross=False):
    b, _, _, n = x.shape
    k = idx.shape[-1]
    x = x.reshape(b, -1, n)
    flat = (idx + torch.arange(b, device=x.device).view(-1, 1, 1) * n).view(-1)
    feat = x.transpose(2, 1).contiguous().view(b * n, -1)[flat].view(b, n, k, -1, 3)
    ctr = x.transpose(2, 1).reshape(b, n, 1, -1, 3).repeat(1, 1, k, 1, 1)
    parts = [feat - ctr, ctr] + ([torch.cross(feat, ctr, dim=-1)] if cross else [])
    return torch.cat(parts, dim=3).permute(0, 3, 4, 1, 2).contiguous()


class Model(nn.Module):
    """VN-DGCNN: rotation-equivariant vector neurons on given neighbours, invariant frame, smoothed loss."""

    def __init__(self, n_cls, n_part, c1, c2, c_glob):
        super().__init__()
        self.n_cls = n_cls
        self.conv1, self.conv2 = VNLinearLeakyReLU(3, c1), VNLinearLeakyReLU(c1, c1)
        self.conv3, self.conv4 = VNLinearLeakyReLU(2 * c1, c1), VNLinearLeakyReLU(c1, c2)
        self.conv5 = VNLinearLeakyReLU(2 * c2, c2)
        self.conv6 = VNLinearLeakyReLU(2 * c1 + c2, c_glob, dim=4, share=True)
        self.std = VNStdFeature(2 * c_glob)
        self.lin1, self.bn1 = nn.Linear(12 * c_glob, 512, bias=False), nn.BatchNorm1d(512)
        self.lin2, self.bn2, self.lin3 = nn.Linear(512, 256), nn.BatchNorm1d(256), nn.Linear(256, n_cls)
        c_seg = 6 * c_glob + 3 * (2 * c1 + c2)
        self.seg = nn.Sequential(nn.Conv1d(c_seg, 256, 1, bias=False), nn.BatchNorm1d(256),
                                 nn.LeakyReLU(0.2, inplace=True), nn.Conv1d(256, n_part, 1))

    def forward(self, pts, idx1, idx2, label, part):
        x = pts.unsqueeze(1)
        b, n = x.shape[0], x.shape[-1]
        x1 = self.conv2(self.conv1(graph_feature(x, idx1, cross=True))).mean(dim=-1)
        x2 = self.conv4(self.conv3(graph_feature(x1, idx2))).mean(dim=-1)
        x3 = self.conv5(graph_feature(x2, idx1)).mean(dim=-1)
        skip = torch.cat((x1, x2, x3[:, :x1.shape[1]]), dim=1)
        x = self.conv6(skip)
        x = torch.cat((x, x.mean(dim=-1, keepdim=True).expand(x.size())), 1)
        x, frame = self.std(x)
        inv = x.reshape(b, -1, n)
        s_inv = torch.einsum("bijm,bjkm->bikm", skip, frame).reshape(b, -1, n)
        seg = self.seg(torch.cat([inv, s_inv], dim=1))
        g = torch.cat((F.adaptive_max_pool1d(inv, 1), F.adaptive_avg_pool1d(inv, 1)), 1).view(b, -1)
        g = F.leaky_relu(self.bn1(self.lin1(g)), negative_slope=0.2)
        logits = self.lin3(F.leaky_relu(self.bn2(self.lin2(g)), negative_slope=0.2))
        one = torch.zeros_like(logits).scatter(1, label.view(-1, 1), 1)
        one = one * 0.8 + (1 - one) * 0.2 / (self.n_cls - 1)
        loss = -(one * F.log_softmax(logits, dim=1)).sum(dim=1).mean()
        return loss + F.cross_entropy(seg, part), logits, seg


def get_inputs():
    b, n, k = 7, 101, 12
    return [torch.randn(b, 3, n), torch.randint(0, n, (b, n, k)), torch.randint(0, n, (b, n, k)),
            torch.randint(0, 40, (b,)), torch.randint(0, 13, (b, n))]


def get_init_inputs():
    return [40, 13, 21, 42, 113]
