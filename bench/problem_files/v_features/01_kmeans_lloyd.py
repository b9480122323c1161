import torch
import torch.nn as nn


class Model(nn.Module):
    """Weighted k-means: farthest-point seeding, Lloyd steps with index_add_, empty
    clusters moved to the worst point, simplified silhouettes in the L1 metric."""

    def __init__(self, k, steps):
        super().__init__()
        self.k = k
        self.steps = steps

    def seed(self, x):
        n = x.shape[0]
        first = (x - x.mean(0)).square().sum(1).argmax()
        chosen = torch.empty(self.k, dtype=torch.int64)
        chosen[0] = first
        near = torch.full((n,), float("inf"), dtype=x.dtype)
        for j in range(1, self.k):
            d = (x - x[chosen[j - 1]]).square().sum(1)
            torch.minimum(near, d, out=near)
            chosen[j] = near.argmax()
        return x.index_select(0, chosen)

    def forward(self, x, w):
        with torch.no_grad():
            c = self.seed(x)
        for _ in range(self.steps):
            d = torch.cdist(x, c, compute_mode="donot_use_mm_for_euclid_dist")
            near, label = d.detach().min(dim=1)
            mass = x.new_zeros(self.k).index_add_(0, label, w)
            total = x.new_zeros(self.k, x.shape[1]).index_add_(0, label, x * w.unsqueeze(1))
            mean = total / mass.clamp(min=1e-12).unsqueeze(1)
            worst = x[(near * w).argmax()].expand_as(mean)
            c = torch.where((mass > 0).unsqueeze(1), mean, worst)
        d2 = torch.cdist(x, c, p=2.0).square()
        label = d2.argmin(1)
        inertia = x.new_zeros(self.k).scatter_add(0, label, w * d2.gather(1, label[:, None]).squeeze(1))
        two, _ = torch.cdist(x, c, p=1.0).topk(2, dim=1, largest=False)
        a, b = two.unbind(1)
        silhouette = (b - a) / torch.maximum(a, b).clamp_min(1e-9)
        counts = torch.bincount(label, minlength=self.k).to(torch.int32)
        onehot = nn.functional.one_hot(label, self.k).to(torch.bool)
        spread = torch.where(onehot, torch.cdist(x, c, p=float("inf")), x.new_tensor(-1.0)).amax(0)
        return c, label, counts, inertia, silhouette, spread


def get_inputs():
    n, f, k = 4003, 17, 13
    centres = 6.0 * torch.randn(k, f)
    x = centres[torch.arange(n) % k] + 0.7 * torch.randn(n, f)
    return [x, 0.5 + torch.rand(n)]


def get_init_inputs():
    return [13, 5]
