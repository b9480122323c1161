import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class SNLinear(nn.Module):
    """Linear with hand-written spectral normalisation; u, v are power-iterated in training forward."""

    def __init__(self, d_in, d_out, n_iter=1):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in))
        nn.init.orthogonal_(self.weight)
        self.bias = nn.Parameter(torch.zeros(d_out))
        self.n_iter = n_iter
        self.register_buffer("u", F.normalize(torch.randn(d_out), dim=0))
        self.register_buffer("v", F.normalize(torch.randn(d_in), dim=0))

    def compute_weight(self):
        W = self.weight
        if self.training:
            with torch.no_grad():
                for _ in range(self.n_iter):
                    torch.mv(W.t(), self.u, out=self.v)
                    self.v.div_(self.v.norm().clamp_min(1e-12))
                    self.u.copy_(F.normalize(W @ self.v, dim=0))
        u, v = self.u.clone(), self.v.clone()
        sigma = torch.dot(u, W @ v)
        return W / sigma, sigma

    def forward(self, x):
        W, self.last_sigma = self.compute_weight()
        return F.linear(x, W, self.bias)


class Encoder(nn.Module):
    def __init__(self, dims, proj):
        super().__init__()
        self.layers = nn.ModuleList(SNLinear(a, b) for a, b in zip(dims, dims[1:]))
        self.bn = nn.BatchNorm1d(dims[-1], momentum=0.05)
        self.head = nn.Linear(dims[-1], proj, bias=False)

    def forward(self, x):
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.1)
        return F.normalize(self.head(self.bn(x)), dim=-1)


class Model(nn.Module):
    """MoCo: EMA key encoder updated in forward, ring-buffer queue, hard negatives by top-k."""

    def __init__(self, dims, proj, queue, m=0.99, hard_k=32):
        super().__init__()
        self.query = Encoder(dims, proj)
        self.key = copy.deepcopy(self.query)
        for p in self.key.parameters():
            p.requires_grad_(False)
        self.m, self.hard_k = m, hard_k
        self.log_temp = nn.Parameter(torch.tensor(-1.6))
        self.register_buffer("queue", F.normalize(torch.randn(proj, queue), dim=0))
        self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))
        self.register_buffer("filled", torch.zeros(queue, dtype=torch.bool))

    @torch.no_grad()
    def _momentum(self):
        for pk, pq in zip(self.key.parameters(), self.query.parameters()):
            pk.mul_(self.m).add_(pq, alpha=1 - self.m)

    @torch.no_grad()
    def _enqueue(self, keys):
        n, size = keys.shape[0], self.queue.shape[1]
        p = int(self.ptr)
        end = p + n
        if end <= size:
            self.queue[:, p:end] = keys.T
            self.filled[p:end] = True
        else:
            first = size - p
            self.queue[:, p:] = keys[:first].T
            self.queue[:, : end - size] = keys[first:].T
            self.filled.logical_or_(torch.ones_like(self.filled))
        self.ptr[0] = end % size

    def forward(self, xq, xk=None, update_queue=True):
        if xk is None:
            xk = xq.flip(-1) * 0.1 + xq * 0.9
        q = self.query(xq)
        with torch.no_grad():
            self._momentum()
            k = self.key(xk)
        neg_all = q @ self.queue.clone()
        pos = torch.einsum("nc,nc->n", q, k).unsqueeze(1)
        neg, where = neg_all.topk(self.hard_k, dim=1, sorted=False)
        age = self.filled[where]
        temp = self.log_temp.exp()
        debias = torch.where(age, 0.0, -0.5)
        logits = torch.cat((pos / temp, neg / temp + debias), dim=1)
        target = torch.zeros(len(q), dtype=torch.long, device=q.device)
        loss = F.cross_entropy(logits, target, label_smoothing=0.05)
        # alignment and uniformity terms
        align = (q - k).norm(dim=1).pow(2).mean()
        uniform = torch.pdist(q).square().mul(-2).exp().mean().log()
        if update_queue:
            self._enqueue(k)
        sig = torch.stack([l.last_sigma for l in self.query.layers])
        return {"loss": loss + 0.1 * align + 0.1 * uniform, "pos": pos, "sigma": sig,
                "hardest": neg.amax(1), "ptr": self.ptr.clone(), "key": k}


def get_inputs():
    return [torch.randn(96, 64)]


def get_init_inputs():
    return [[64, 128, 128, 64], 48, 256]
