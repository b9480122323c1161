import torch
import torch.nn as nn
import torch.nn.functional as F


def power_iteration_sigma(w, u, n_iter=3, eps=1e-12):
    w2 = w.reshape(w.shape[0], -1)
    with torch.no_grad():
        for _ in range(n_iter):
            v = F.normalize(torch.mv(w2.t(), u), dim=0, eps=eps)
            u = F.normalize(torch.mv(w2, v), dim=0, eps=eps)
    return torch.dot(u, torch.mv(w2, v))


class Model(nn.Module):
    """Task loss plus spectral, orthogonality, group-lasso and finite-difference Jacobian penalties."""

    def __init__(self, dims, num_classes, fd_eps):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip(dims[:-1], dims[1:])])
        self.out = nn.Linear(dims[-1], num_classes)
        self.fd_eps = fd_eps
        for i, l in enumerate(self.layers):
            self.register_buffer(f"u{i}", F.normalize(torch.randn(l.out_features), dim=0))

    def net(self, x):
        for l in self.layers:
            x = F.softplus(l(x), beta=5.0)
        return self.out(x)

    def forward(self, x, y, directions):
        logits = self.net(x)
        loss = F.cross_entropy(logits, y, label_smoothing=0.05)

        spectral = ortho = group = 0.0
        for i, l in enumerate(self.layers):
            w = l.weight
            sigma = power_iteration_sigma(w, getattr(self, f"u{i}"))
            spectral = spectral + F.relu(sigma - 1.0).square()
            wn = w / sigma
            gram = wn @ wn.t() if w.shape[0] <= w.shape[1] else wn.t() @ wn
            off = gram * (1 - torch.eye(gram.shape[0], device=w.device))
            ortho = ortho + off.pow(2).sum() / gram.shape[0]
            group = group + torch.linalg.vector_norm(w, dim=0).sum() * (w.shape[0] ** 0.5) / w.numel()

        d = F.normalize(directions, dim=-1)
        jac = (self.net(x + self.fd_eps * d) - self.net(x - self.fd_eps * d)) / (2 * self.fd_eps)
        jac_pen = jac.pow(2).sum(-1).mean()
        conf = (logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
        l1 = sum(p.abs().sum() for p in self.out.parameters()) / self.out.weight.numel()
        return loss + 0.1 * spectral + 1e-2 * ortho + 1e-2 * group + 0.05 * jac_pen + 0.1 * conf + 1e-3 * l1


def get_inputs():
    return [torch.randn(90, 130), torch.randint(0, 21, (90,)), torch.randn(90, 130)]


def get_init_inputs():
    return [[130, 192, 160, 88], 21, 0.1]
