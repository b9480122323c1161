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
    device = points.device
    B = points.shape[0]
    view_shape = list(idx.shape)
    view_shape[1:] = [1] * (len(view_shape) - 1)
    repeat_shape = list(idx.shape)
    repeat_shape[0] = 1
    batch_indices = torch.arange(B, dtype=torch.long).to(device).view(view_shape).repeat(repeat_shape)
    return points[batch_indices, idx, :]


def farthest_point_sample(xyz, npoint):
    device = xyz.device
    B, N, C = xyz.shape
    centroids = torch.zeros(B, npoint, dtype=torch.long).to(device)
    distance = torch.ones(B, N, dtype=xyz.dtype).to(device) * 1e10
    farthest = torch.zeros(B, dtype=torch.long).to(device)
    batch_indices = torch.arange(B, dtype=torch.long).to(device)
    for i in range(npoint):
        centroids[:, i] = farthest
        centroid = xyz[batch_indices, farthest, :].view(B, 1, 3)
        dist = torch.sum((xyz - centroid) ** 2, -1)
        mask = dist < distance
        distance[mask] = dist[mask]
        farthest = torch.max(distance, -1)[1]
    return centroids


def query_ball_point(radius, nsample, xyz, new_xyz):
    device = xyz.device
    B, N, C = xyz.shape
    _, S, _ = new_xyz.shape
    group_idx = torch.arange(N, dtype=torch.long).to(device).view(1, 1, N).repeat([B, S, 1])
    sqrdists = square_distance(new_xyz, xyz)
    group_idx[sqrdists > radius ** 2] = N
    group_idx = group_idx.sort(dim=-1)[0][:, :, :nsample]
    group_first = group_idx[:, :, 0].view(B, S, 1).repeat([1, 1, nsample])
    mask = group_idx == N
    group_idx[mask] = group_first[mask]
    return group_idx


class SetAbstraction(nn.Module):
    def __init__(self, npoint, radius, nsample, in_channel, mlp):
        super().__init__()
        self.npoint, self.radius, self.nsample = npoint, radius, nsample
        self.mlp_convs = nn.ModuleList()
        self.mlp_bns = nn.ModuleList()
        last = in_channel
        for out in mlp:
            self.mlp_convs.append(nn.Conv2d(last, out, 1))
            self.mlp_bns.append(nn.BatchNorm2d(out))
            last = out

    def forward(self, xyz, points):
        with torch.no_grad():
            fps = farthest_point_sample(xyz, self.npoint)
            new_xyz = index_points(xyz, fps)
            idx = query_ball_point(self.radius, self.nsample, xyz, new_xyz)
        B, S, K = idx.shape
        grouped = (index_points(xyz, idx) - new_xyz.view(B, S, 1, 3)) / self.radius
        new_points = torch.cat([grouped, index_points(points, idx)], dim=-1).permute(0, 3, 2, 1)
        for conv, bn in zip(self.mlp_convs, self.mlp_bns):
            new_points = F.relu(bn(conv(new_points)))
        return new_xyz, torch.max(new_points, 2)[0].transpose(1, 2)


class FeaturePropagation(nn.Module):
    def __init__(self, in_channel, mlp):
        super().__init__()
        self.convs, self.bns = nn.ModuleList(), nn.ModuleList()
        for out in mlp:
            self.convs.append(nn.Conv1d(in_channel, out, 1))
            self.bns.append(nn.BatchNorm1d(out))
            in_channel = out

    def forward(self, xyz1, xyz2, points1, points2):
        dists, idx = square_distance(xyz1, xyz2).topk(3, dim=-1, largest=False)
        w = 1.0 / (dists.clamp(min=0) + 1e-4)
        w = w / w.sum(dim=2, keepdim=True)
        x = torch.sum(index_points(points2, idx) * w.unsqueeze(-1), dim=2)
        x = torch.cat([points1, x], dim=-1).permute(0, 2, 1)
        for conv, bn in zip(self.convs, self.bns):
            x = F.relu(bn(conv(x)))
        return x.permute(0, 2, 1)


class Model(nn.Module):
    """PointNet++ part segmentation: farthest points, ball query, set abstraction, three-neighbour interpolation."""

    def __init__(self, feat, classes, npoints, radii, nsample):
        super().__init__()
        self.sa1 = SetAbstraction(npoints[0], radii[0], nsample, feat + 3, [20, 28])
        self.sa2 = SetAbstraction(npoints[1], radii[1], nsample, 28 + 3, [36, 52])
        self.fp2 = FeaturePropagation(52 + 28, [44])
        self.fp1 = FeaturePropagation(44 + feat + 3, [40, 30])
        self.conv = nn.Conv1d(30, classes, 1)

    def forward(self, xyz, feats):
        l1_xyz, l1 = self.sa1(xyz, feats)
        l2_xyz, l2 = self.sa2(l1_xyz, l1)
        l1 = self.fp2(l1_xyz, l2_xyz, l1, l2)
        l0 = self.fp1(xyz, l1_xyz, torch.cat([xyz, feats], -1), l1)
        x = F.log_softmax(self.conv(l0.permute(0, 2, 1)), dim=1)
        return x.permute(0, 2, 1), l2.max(dim=1).values


def get_inputs():
    return [torch.rand(2, 213, 3) * 2 - 1, torch.randn(2, 213, 4)]


def get_init_inputs():
    return [4, 6, [45, 14], [0.5, 0.9], 11]
