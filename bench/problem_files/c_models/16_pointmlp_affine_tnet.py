import torch
import torch.nn as nn
import torch.nn.functional as F


def square_distance(src, dst):
    B, N, _ = src.shape
    _, M, _ = dst.shape
    dist = -2 * torch.matmul(src, dst.permute(0, 2, 1))
    dist += torch.sum(src ** 2, -1).view(B, N, 1)
    dist += torch.sum(dst ** 2, -1).view(B, 1, M)
    return dist


def index_points(points, idx):
    B = points.shape[0]
    view_shape = list(idx.shape)
    view_shape[1:] = [1] * (len(view_shape) - 1)
    repeat_shape = list(idx.shape)
    repeat_shape[0] = 1
    batch_indices = torch.arange(B, dtype=torch.long, device=points.device).view(view_shape).repeat(repeat_shape)
    return points[batch_indices, idx, :]


class TNet(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k
        self.c1, self.c2 = nn.Conv1d(k, 48, 1), nn.Conv1d(48, 128, 1)
        self.b1, self.b2 = nn.BatchNorm1d(48), nn.BatchNorm1d(128)
        self.fc1, self.fc2 = nn.Linear(128, 64), nn.Linear(64, k * k)

    def forward(self, x):
        x = F.relu(self.b1(self.c1(x)))
        x = F.relu(self.b2(self.c2(x)))
        x = torch.max(x, 2, keepdim=True)[0].view(-1, 128)
        x = self.fc2(F.relu(self.fc1(x)))
        iden = torch.eye(self.k, device=x.device, dtype=x.dtype).flatten().view(1, -1).repeat(x.shape[0], 1)
        return (x + iden).view(-1, self.k, self.k)


class LocalGrouper(nn.Module):
    def __init__(self, channel, groups, kneighbors, normalize):
        super().__init__()
        self.groups, self.kneighbors, self.normalize = groups, kneighbors, normalize
        self.affine_alpha = nn.Parameter(torch.ones([1, 1, 1, channel + 3]))
        self.affine_beta = nn.Parameter(torch.zeros([1, 1, 1, channel + 3]))

    def forward(self, xyz, points):
        B, N, C = xyz.shape
        S = self.groups
        new_xyz = xyz[:, :: N // S][:, :S].contiguous()
        new_points = points[:, :: N // S][:, :S]
        with torch.no_grad():
            idx = torch.topk(square_distance(new_xyz, xyz), self.kneighbors, dim=-1, largest=False, sorted=True)[1]
        grouped = torch.cat([index_points(points, idx), index_points(xyz, idx)], dim=-1)
        if self.normalize == "center":
            mean = torch.mean(grouped, dim=2, keepdim=True)
        else:
            mean = torch.cat([new_points, new_xyz], dim=-1).unsqueeze(dim=-2)
        std = torch.std((grouped - mean).reshape(B, -1), dim=-1, keepdim=True).unsqueeze(dim=-1).unsqueeze(dim=-1)
        grouped = (grouped - mean) / (std + 1e-5)
        grouped = self.affine_alpha * grouped + self.affine_beta
        out = torch.cat([grouped, new_points.view(B, S, 1, -1).repeat(1, 1, self.kneighbors, 1)], dim=-1)
        return new_xyz, out


class ConvBNReLU1D(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(cin, cout, 1, bias=False), nn.BatchNorm1d(cout), nn.ReLU(inplace=True))

    def forward(self, x):
        return self.net(x)


class ConvBNReLURes1D(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.net1 = ConvBNReLU1D(c, c)
        self.net2 = nn.Sequential(nn.Conv1d(c, c, 1, bias=False), nn.BatchNorm1d(c))

    def forward(self, x):
        return F.relu(self.net2(self.net1(x)) + x)


class PreExtraction(nn.Module):
    def __init__(self, cin, cout, blocks):
        super().__init__()
        self.transfer = ConvBNReLU1D(3 + 2 * cin, cout)
        self.operation = nn.Sequential(*[ConvBNReLURes1D(cout) for _ in range(blocks)])

    def forward(self, x):
        b, n, s, d = x.size()
        x = x.permute(0, 1, 3, 2).reshape(-1, d, s)
        x = self.operation(self.transfer(x))
        x = F.adaptive_max_pool1d(x, 1).view(b * n, -1)
        return x.reshape(b, n, -1).permute(0, 2, 1)


class Model(nn.Module):
    """PointMLP classifier with an input T-Net, geometric affine grouping and orthogonality penalty."""

    def __init__(self, points, embed, stages, k, num_classes):
        super().__init__()
        self.tnet = TNet(3)
        self.embedding = ConvBNReLU1D(3, embed)
        self.groupers, self.pre, self.pos = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        c, n = embed, points
        for i in range(stages):
            n = n // 2
            self.groupers.append(LocalGrouper(c, n, k, "center" if i % 2 == 0 else "anchor"))
            self.pre.append(PreExtraction(c, 2 * c, 1))
            c *= 2
            self.pos.append(ConvBNReLURes1D(c))
        self.classifier = nn.Sequential(nn.Linear(c, 128), nn.BatchNorm1d(128), nn.ReLU(inplace=True), nn.Linear(128, num_classes))

    def forward(self, xyz):
        x = xyz.transpose(1, 2)
        trans = self.tnet(x)
        x = self.embedding(torch.bmm(xyz, trans).transpose(2, 1))
        for g, pre, pos in zip(self.groupers, self.pre, self.pos):
            xyz, x = g(xyz, x.permute(0, 2, 1))
            x = pos(pre(x))
        x = F.adaptive_max_pool1d(x, 1).squeeze(dim=-1)
        eye = torch.eye(3, device=x.device, dtype=x.dtype)[None]
        reg = torch.mean(torch.norm(torch.bmm(trans, trans.transpose(2, 1)) - eye, dim=(1, 2)))
        return self.classifier(x), reg


def get_inputs():
    return [torch.randn(5, 256, 3)]


def get_init_inputs():
    return [256, 32, 3, 12, 40]
