"""Losses, wrappers of weights and ways of learning, as people write them by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from problem_set.core import function, net, problem_of, weight

problem = problem_of("objectives")


@problem
def simclr_loss(scale):
    def forward(one, two):
        z = F.normalize(torch.cat([one, two]), dim=1)
        n = len(z)
        at = torch.arange(n, device=z.device)
        similar = (z @ z.t() / 0.5).masked_fill(at == at[:, None], float("-inf"))
        partner = torch.cat([at[n // 2 :], at[: n // 2]])
        return F.cross_entropy(similar, partner)

    return function(forward), [torch.randn(11 * scale, 24), torch.randn(11 * scale, 24)]


@problem
def barlow_and_variance(scale):
    def forward(one, two):
        a, b = ((t - t.mean(0)) / t.std(0) for t in (one, two))
        c = a.T @ b / len(a)
        on = torch.diagonal(c).add(-1).pow(2).sum()
        flat = c.flatten()[:-1].view(len(c) - 1, len(c) + 1)[:, 1:].flatten()
        spread = torch.sqrt(one.var(dim=0) + 1e-4)
        return on + 0.005 * flat.pow(2).sum(), F.relu(1 - spread).mean()

    return function(forward), [torch.randn(14 * scale, 9), torch.randn(14 * scale, 9)]


@problem
def arc_margin(scale):
    def forward(self, x, label):
        cosine = F.linear(F.normalize(x), F.normalize(self.weight))
        sine = torch.sqrt((1.0 - torch.pow(cosine, 2)).clamp(0.0001, 1))
        phi = cosine * 0.8776 - sine * 0.4794
        phi = torch.where(cosine > -0.8776, phi, cosine - 0.2397)
        hot = torch.zeros_like(cosine).scatter_(1, label.view(-1, 1), 1)
        return F.cross_entropy((hot * phi + (1.0 - hot) * cosine) * 30.0, label)

    made = net(forward, weight=weight(17, 12))
    return made, [torch.randn(10 * scale, 12), torch.randint(0, 17, (10 * scale,))]


@problem
def box_losses(scale):
    """Generalised intersection over union of all pairs, and of partners, with L1 and focal."""

    def corners(t):
        x, y, w, h = t.unbind(-1)
        return torch.stack([x - 0.5 * w, y - 0.5 * h, x + 0.5 * w, y + 0.5 * h], dim=-1)

    def area(t):
        return (t[..., 2] - t[..., 0]) * (t[..., 3] - t[..., 1])

    def forward(boxes, targets, logits):
        a, b = corners(boxes.sigmoid()), corners(targets.sigmoid())
        lt, rb = torch.max(a[:, None, :2], b[:, :2]), torch.min(a[:, None, 2:], b[:, 2:])
        inter = (rb - lt).clamp(min=0).prod(-1)
        union = area(a)[:, None] + area(b) - inter
        lt, rb = torch.min(a[:, None, :2], b[:, :2]), torch.max(a[:, None, 2:], b[:, 2:])
        hull = (rb - lt).clamp(min=0).prod(-1)
        giou = inter / union - (hull - union) / hull
        p, hit = logits.sigmoid(), (giou > 0).float().amax(1, keepdim=True)
        ce = F.binary_cross_entropy_with_logits(logits, hit.expand_as(logits), reduction="none")
        pt = p * hit + (1 - p) * (1 - hit)
        focal = (0.25 * hit + 0.75 * (1 - hit)) * ce * (1 - pt) ** 2
        return (1 - torch.diag(giou)).sum(), torch.cdist(a, b, p=1).mean(), focal.mean(1).sum()

    return function(forward), [torch.randn(9 * scale, 4), torch.randn(9 * scale, 4),
                               torch.randn(9 * scale, 7)]  # fmt: skip


@problem
def conditional_random_field(scale):
    def forward(self, emissions, tags):
        rows = torch.arange(len(tags), device=tags.device)
        score = self.start[tags[:, 0]] + emissions[rows, 0, tags[:, 0]]
        alpha = self.start + emissions[:, 0]
        for t in range(1, tags.shape[1]):
            score = score + self.moves[tags[:, t - 1], tags[:, t]] + emissions[rows, t, tags[:, t]]
            step = alpha.unsqueeze(2) + self.moves + emissions[:, t].unsqueeze(1)
            alpha = torch.logsumexp(step, dim=1)
        return (torch.logsumexp(alpha, 1) - score).mean()

    made = net(forward, start=weight(6), moves=weight(6, 6))
    return made, [torch.randn(4 * scale, 7, 6), torch.randint(0, 6, (4 * scale, 7))]


@problem
def policy_losses(scale):
    """PPO with advantages by a loop backwards, and a categorical projection by index_add."""

    def forward(self, x, rewards, actions):
        values = self.value(x).squeeze(-1)
        advantage, out = torch.zeros_like(rewards[0]), []
        for t in reversed(range(len(rewards) - 1)):
            delta = rewards[t] + 0.99 * values[t + 1].detach() - values[t].detach()
            advantage = delta + 0.99 * 0.95 * advantage
            out.insert(0, advantage)
        advantages = torch.stack(out)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        spread = torch.distributions.Categorical(
            logits=self.policy(x[:-1]), validate_args=False)
        ratio = (spread.log_prob(actions[:-1]) + 1.5).exp()
        lost = torch.max(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)).mean()
        place = ((rewards.clamp(-1, 1) + 1) / 0.2).flatten()
        low, high = place.floor().long(), place.ceil().long()
        mass = x.new_zeros(12)
        mass = mass.index_add(0, low, high - place).index_add(0, high, place - low)
        error = F.smooth_l1_loss(values[:-1], advantages + values[:-1].detach())
        return lost + 0.5 * error - 0.01 * spread.entropy().mean(), mass

    made = net(forward, policy=nn.Linear(5, 4), value=nn.Linear(5, 1))
    return made, [torch.randn(8, 3 * scale, 5), torch.randn(8, 3 * scale),
                  torch.randint(0, 4, (8, 3 * scale))]  # fmt: skip


@problem
def adversarial_losses(scale):
    """A generator and a critic: the loss of each, one through the other."""

    def forward(self, real, noise):
        fake = self.generate(noise)
        one = self.judge(real), self.judge(fake.detach())
        ones, zeros = torch.ones_like(one[0]), torch.zeros_like(one[1])
        critic = F.binary_cross_entropy_with_logits(one[0], ones)
        critic = critic + F.binary_cross_entropy_with_logits(one[1], zeros)
        hinge = F.relu(1 - one[0]).mean() + F.relu(1 + one[1]).mean()
        return critic, hinge, F.softplus(-self.judge(fake)).mean()

    made = net(
        forward,
        generate=nn.Sequential(nn.ConvTranspose2d(6, 8, 4), nn.BatchNorm2d(8), nn.ReLU(),
                               nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh()),
        judge=nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True),
                            nn.Flatten(), nn.Linear(128, 1)),
    )  # fmt: skip
    return made, [torch.randn(3 * scale, 3, 8, 8), torch.randn(3 * scale, 6, 1, 1)]


@problem
def capsules(scale):
    def forward(self, x):
        def squash(s, dim=-1):
            square = (s**2).sum(dim, keepdim=True)
            return square / (1 + square) * s / (square.sqrt() + 1e-8)

        votes = torch.einsum("ijkl,bil->bijk", self.weight, squash(x))
        logits = x.new_zeros(x.shape[0], 10, 4)
        for step in range(3):
            share = logits.softmax(-1).unsqueeze(-1)
            out = squash((share * votes).sum(1))
            if step < 2:
                logits = logits + (votes.detach() * out.unsqueeze(1)).sum(-1)
        length = out.norm(dim=-1)
        return length, (F.relu(0.9 - length) ** 2 + 0.5 * F.relu(length - 0.1) ** 2).sum(1).mean()

    return net(forward, weight=weight(10, 4, 6, 5)), [torch.randn(3 * scale, 10, 5)]


class _Adapted(nn.Module):
    def __init__(self, inner: nn.Linear, rank: int):
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Linear(inner.in_features, rank, bias=False)
        self.up = nn.Linear(rank, inner.out_features, bias=False)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.inner(x) + self.up(self.down(self.drop(x))) * 2.0


@problem
def adapted_layers(scale):
    """Low-rank wrappers around frozen layers, one of them with a norm of its columns (DoRA)."""

    def forward(self, x):
        h = F.silu(self.one(x))
        w = self.two.inner.weight + 2.0 * self.two.up.weight @ self.two.down.weight
        w = self.size * w / w.norm(dim=1, keepdim=True).detach()
        return F.linear(h, w, self.two.inner.bias)

    made = net(forward, one=_Adapted(nn.Linear(15, 22), 3), two=_Adapted(nn.Linear(22, 9), 3),
               size=weight(9, 1))  # fmt: skip
    return made, [torch.randn(12 * scale, 15)]


class _Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).transpose(-1, -2)


@problem
def parametrised_layers(scale):
    """Weight norm, spectral norm (whose buffers change in training), an own parametrisation."""

    def forward(self, x):
        x = F.elu(self.normed(x))
        x = F.leaky_relu(self.spectral(x), 0.2).mean(-1)
        with parametrize.cached():
            return self.own(x) + self.own(x.tanh())

    own = nn.Linear(8, 8)
    parametrize.register_parametrization(own, "weight", _Symmetric())
    made = net(
        forward, normed=parametrizations.weight_norm(nn.Conv1d(4, 10, 3)),
        spectral=parametrizations.spectral_norm(nn.Conv1d(10, 8, 3)), own=own)  # fmt: skip
    return made, [torch.randn(3 * scale, 4, 14)]


@problem
def averaged_teacher(scale):
    """As BYOL and DINO: a moving average of weights, in buffers, written in the forward."""

    def forward(self, x, y):
        with torch.no_grad():
            self.teacher.mul_(0.99).add_(self.student.weight, alpha=0.01)
            seen = F.softmax((F.linear(y, self.teacher) - self.centre) / 0.04, dim=-1)
            self.centre.copy_(self.centre * 0.9 + seen.mean(0, keepdim=True) * 0.1)
        mine = F.log_softmax(self.student(x) / 0.1, dim=-1)
        return torch.sum(-seen * mine, dim=-1).mean()

    made = net(forward, student=nn.Linear(12, 18, bias=False))
    made.register_buffer("teacher", made.student.weight.detach().clone() + 0.01)
    made.register_buffer("centre", torch.zeros(1, 18))
    return made, [torch.randn(7 * scale, 12), torch.randn(7 * scale, 12)]


@problem(trains=False)
def derivatives_inside(scale):
    """A gradient by torch.func, mapped over rows, and a functional call of a layer."""

    def forward(self, x):
        def energy(row):
            return torch.func.functional_call(self.layer, dict(self.layer.named_parameters()),
                                              (row,)).tanh().sum()  # fmt: skip

        force = torch.func.vmap(torch.func.grad(energy))(x)
        return force, torch.func.vmap(lambda a, b: (a * b).sum())(force, x)

    return net(forward, layer=nn.Linear(6, 5)), [torch.randn(8 * scale, 6)]


@problem
def routed_experts(scale):
    """The two best experts of each token, by topk, with a loss for balance."""

    def forward(self, x):
        probs = self.gate(x).softmax(-1)
        share, which = probs.topk(2, dim=-1)
        share = share / share.sum(-1, keepdim=True)
        chosen = F.one_hot(which, 5).to(x.dtype)
        places = (chosen.sum(1).cumsum(0) * chosen.sum(1)).long()
        dispatch = (chosen * share.unsqueeze(-1)).sum(1) * (places <= 9)
        h = F.gelu(torch.einsum("nd,edh->enh", x, self.up))
        out = torch.einsum("enh,ehd,ne->nd", h, self.down, dispatch)
        return out, 5 * (probs.mean(0) * chosen.sum(1).mean(0)).sum()

    made = net(forward, gate=nn.Linear(10, 5, bias=False), up=weight(5, 10, 14, std=0.3),
               down=weight(5, 14, 10, std=0.3))  # fmt: skip
    return made, [torch.randn(21 * scale, 10)]


@problem
def spectral_loss(scale):
    """Spectrograms at two resolutions, compared in size and in logarithm."""

    def forward(x, y):
        total = 0.0
        for n in (32, 64):
            window = torch.hann_window(n, device=x.device, dtype=x.dtype)
            a, b = (torch.stft(t, n, n // 4, window=window, return_complex=True).abs() + 1e-5
                    for t in (x, y))  # fmt: skip
            total = total + (a - b).norm() / b.norm() + F.l1_loss(a.log(), b.log())
        return total

    return function(forward), [torch.randn(2 * scale, 300), torch.randn(2 * scale, 300)]


@problem
def integrated_field(scale):
    """Four Runge-Kutta steps of a sine network (SIREN) with its own divergence's trace."""

    def forward(self, x):
        def field(t, y):
            return self.out(torch.sin(30 * self.inside(torch.cat([y, t.expand(len(y), 1)], 1))))

        t, h = x.new_zeros(1, 1), 0.25
        for _ in range(4):
            k1 = field(t, x)
            k2 = field(t + h / 2, x + h / 2 * k1)
            k3 = field(t + h / 2, x + h / 2 * k2)
            k4 = field(t + h, x + h * k3)
            x, t = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), t + h
        return x

    made = net(forward, inside=nn.Linear(4, 19), out=nn.Linear(19, 3))
    return made, [torch.randn(15 * scale, 3)]


@problem
def attention_of_channels_and_places(scale):
    """Squeeze and excite, spatial attention, a pyramid of poolings, an affine warp, involution."""

    def forward(self, x):
        b, c, h, w = x.shape
        x = x * torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3)))))).view(b, c, 1, 1)
        both = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        x = x * torch.sigmoid(self.place(both))
        pools = [F.interpolate(F.adaptive_avg_pool2d(x, s), (h, w), mode="bilinear",
                               align_corners=False) for s in (1, 3)]  # fmt: skip
        theta = torch.tanh(self.theta(x.mean((2, 3)))).view(b, 2, 3)
        theta = torch.eye(2, 3, device=x.device) + 0.1 * theta
        warped = F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False),
                               align_corners=False)  # fmt: skip
        kernel = self.kernel(x).view(b, 2, 1, 9, h, w)
        windows = F.unfold(x, 3, padding=1).view(b, 2, c // 2, 9, h, w)
        return torch.cat([*pools, warped, (kernel * windows).sum(3).view(b, c, h, w)], 1)

    made = net(forward, down=nn.Linear(8, 2), up=nn.Linear(2, 8), theta=nn.Linear(8, 6),
               place=nn.Conv2d(2, 1, 7, padding=3), kernel=nn.Conv2d(8, 18, 1))  # fmt: skip
    return made, [torch.randn(2 * scale, 8, 9, 11)]
