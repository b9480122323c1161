import torch
from torch import nn
from torch.nn import functional as F


class Localisation(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, kernel_size=7), nn.MaxPool2d(2, stride=2), nn.ReLU(True),
            nn.Conv2d(8, 10, kernel_size=5), nn.MaxPool2d(2, stride=2), nn.ReLU(True),
        )
        self.fc_loc = nn.Sequential(nn.Linear(10 * 5 * 5, 32), nn.ReLU(True), nn.Linear(32, 6))
        self.fc_loc[2].weight.data.mul_(0.1)
        self.fc_loc[2].bias.data.copy_(torch.tensor([1, 0, 0, 0, 1, 0], dtype=torch.float))

    def forward(self, x):
        xs = self.features(x)
        theta = self.fc_loc(xs.view(-1, 10 * 5 * 5)).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(x.size()), align_corners=False)
        return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False), theta


class Model(nn.Module):
    """Spatial transformer in a Siamese tower; batch-hard triplets and a contrastive term on given pairs."""

    def __init__(self, embed, margin, norm_type):
        super().__init__()
        self.stn = Localisation()
        self.tower = nn.Sequential(
            nn.Conv2d(1, 18, 3, padding=1, padding_mode="replicate"), nn.Softplus(),
            nn.LPPool2d(norm_type, 3, stride=2),
            nn.Conv2d(18, 30, 3), nn.PReLU(30), nn.LocalResponseNorm(5, alpha=1e-3, beta=0.75, k=1.0),
            nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
            nn.Conv2d(30, 42, 3), nn.PReLU(1),
        )
        self.proj = nn.Linear(42 * 5, embed)
        self.margin = margin

    def embed(self, x):
        x, theta = self.stn(x)
        h = self.tower(x).abs() + 1e-3
        pyramid = [F.adaptive_max_pool2d(h, 1).flatten(1), F.adaptive_avg_pool2d(h, 2).flatten(1)]
        return F.normalize(self.proj(torch.cat(pyramid, 1)), p=2, dim=1), theta

    @staticmethod
    def pairwise(z):
        dot = z @ z.t()
        sq = dot.diagonal()
        d2 = F.relu(sq.unsqueeze(0) - 2.0 * dot + sq.unsqueeze(1))
        zero = d2.eq(0).float()
        return (1.0 - zero) * torch.sqrt(d2 + zero * 1e-16)

    def batch_hard(self, d, labels):
        same = labels.unsqueeze(0) == labels.unsqueeze(1)
        eye = torch.eye(labels.size(0), dtype=torch.bool, device=labels.device)
        pos = (d * (same & ~eye)).max(1).values
        far = d.max(1, keepdim=True).values
        neg = (d + far * same).min(1)[0]
        return F.softplus(pos - neg + self.margin)

    def forward(self, a, b, labels):
        za, ta = self.embed(a)
        zb, _ = self.embed(b)
        hard = self.batch_hard(self.pairwise(torch.cat([za, zb])), torch.cat([labels, labels.roll(1)]))
        y = (labels == labels.roll(1)).float()
        d = F.pairwise_distance(za, zb)
        contrastive = y * d.pow(2) + (1 - y) * (self.margin - d).clamp(min=0).pow(2)
        return {"loss": hard.mean() + contrastive.mean(), "distance": d, "theta": ta}


def get_inputs():
    return [torch.randn(6, 1, 34, 34), torch.randn(6, 1, 34, 34), torch.tensor([0, 0, 1, 2, 2, 1])]


def get_init_inputs():
    return [27, 0.7, 3]
