import torch
import torch.nn as nn
import torch.nn.functional as F


def scale_gradient(x, s):
    return x * s + x.detach() * (1 - s)


class ResBlock(nn.Module):
    def __init__(self, a, b, stride=1):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b, momentum=0.1)
        self.c2, self.b2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b, momentum=0.1)
        self.skip = nn.Conv2d(a, b, 1, stride, bias=False) if stride > 1 or a != b else None

    def forward(self, x):
        out = self.b2(self.c2(F.relu(self.b1(self.c1(x)))))
        out += x if self.skip is None else self.skip(x)
        return F.relu(out)


class ScalarHead(nn.Module):
    def __init__(self, c, hw, n_out, red=16):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(c, red, 1), nn.BatchNorm2d(red)
        self.fc1, self.bn1, self.fc2 = nn.Linear(red * hw, 64), nn.BatchNorm1d(64), nn.Linear(64, n_out)
        nn.init.normal_(self.fc2.weight, std=0.05)

    def forward(self, x):
        x = F.relu_(self.bn(self.conv(x))).flatten(1)
        return self.fc2(F.relu_(self.bn1(self.fc1(x))))


class Model(nn.Module):
    """MuZero training unroll: min-max scaled latents, value-prefix LSTM, categorical supports."""

    def __init__(self, n_act, c_in, c, hw, K, support, d_proj):
        super().__init__()
        self.n_act, self.K, self.S = n_act, K, support
        h, pool = c // 2, nn.AvgPool2d(3, 2, 1)
        self.rep = nn.Sequential(nn.Conv2d(c_in, h, 3, 2, 1, bias=False), nn.BatchNorm2d(h), nn.ReLU(True),
                                 ResBlock(h, h), ResBlock(h, c, 2), ResBlock(c, c), pool, ResBlock(c, c),
                                 pool, ResBlock(c, c))
        self.dyn_conv, self.dyn_bn = nn.Conv2d(c + 1, c, 3, 1, 1, bias=False), nn.BatchNorm2d(c)
        self.dyn, self.pred = ResBlock(c, c), ResBlock(c, c)
        self.value, self.policy = ScalarHead(c, hw * hw, 2 * support + 1), ScalarHead(c, hw * hw, n_act)
        self.r_conv, self.r_bn = nn.Conv2d(c, 16, 1), nn.BatchNorm2d(16)
        self.r_lstm = nn.LSTMCell(16 * hw * hw, 128)
        self.r_out = nn.Sequential(nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 2 * support + 1))
        self.proj = nn.Sequential(nn.Linear(c * hw * hw, d_proj), nn.BatchNorm1d(d_proj), nn.ReLU(),
                                  nn.Linear(d_proj, d_proj), nn.BatchNorm1d(d_proj))
        self.ahead = nn.Sequential(nn.Linear(d_proj, d_proj // 2), nn.BatchNorm1d(d_proj // 2), nn.ReLU(),
                                   nn.Linear(d_proj // 2, d_proj))

    @staticmethod
    def minmax(s):
        f = s.flatten(1)
        lo, hi = f.min(1, keepdim=True)[0], f.max(1, keepdim=True)[0]
        return ((f - lo) / (hi - lo + 1e-5)).view_as(s)

    def phi(self, x):
        x = torch.sign(x) * (torch.sqrt(torch.abs(x) + 1) - 1) + 0.001 * x
        x = x.clamp(-self.S, self.S)
        low = x.floor()
        i, frac = (low + self.S).long(), x - low
        out = x.new_zeros(*x.shape, 2 * self.S + 1)
        out.scatter_(-1, i.unsqueeze(-1), (1 - frac).unsqueeze(-1))
        out.scatter_add_(-1, (i + 1).clamp(max=2 * self.S).unsqueeze(-1), frac.unsqueeze(-1))
        return out

    def inverse(self, logits):
        sup = torch.arange(-self.S, self.S + 1, device=logits.device, dtype=logits.dtype)
        v, e = (torch.softmax(logits, dim=-1) * sup).sum(-1).float(), 0.001
        return torch.sign(v) * (((torch.sqrt(1 + 4 * e * (v.abs() + 1 + e)) - 1) / (2 * e)) ** 2 - 1)

    def dynamics(self, s, a, hc):
        plane = (a.to(s.dtype) / self.n_act).view(-1, 1, 1, 1).expand(-1, 1, *s.shape[2:])
        x = self.dyn_bn(self.dyn_conv(torch.cat([s, plane], dim=1)))
        x = self.dyn(F.relu(x + s))
        hc = self.r_lstm(F.relu(self.r_bn(self.r_conv(x))).flatten(1), hc)
        return self.minmax(x), self.r_out(hc[0]), hc

    def forward(self, obs, actions, t_value, t_reward, t_policy, mask, weight):
        b = obs.shape[0]
        with torch.no_grad():
            states = self.rep(obs.transpose(0, 1).flatten(0, 1))
            goals = self.proj(self.minmax(states).flatten(1)).view(self.K + 1, b, -1)
        tv, tr = self.phi(t_value), self.phi(t_reward.cumsum(1))
        ce = lambda logits, t: -(t * F.log_softmax(logits, dim=-1)).sum(-1)
        s = self.minmax(self.rep(obs[:, 0]))
        hc = [s.new_zeros(b, 128) for _ in range(2)]
        p = self.pred(s)
        l_v, l_p = ce(self.value(p), tv[:, 0]), ce(self.policy(p), t_policy[:, 0])
        l_r = l_c = torch.zeros_like(l_v)
        values = [self.inverse(self.value(p))]
        for k in range(self.K):
            s, r, hc = self.dynamics(s, actions[:, k], hc)
            z = self.ahead(self.proj(s.flatten(1)))
            l_c = l_c - F.cosine_similarity(z, goals[k + 1], dim=-1, eps=1e-5) * mask[:, k]
            p = self.pred(s)
            v = self.value(p)
            values.append(self.inverse(v))
            l_v = l_v + ce(v, tv[:, k + 1])
            l_p = l_p + ce(self.policy(p), t_policy[:, k + 1]) * mask[:, k]
            l_r = l_r + ce(r, tr[:, k])
            s = scale_gradient(s, 0.5)
        loss = l_r + 0.25 * l_v + l_p + 2 * l_c
        return scale_gradient((weight * loss).mean(), 1 / self.K), loss.detach(), torch.stack(values, dim=1)


def get_inputs():
    b, K = 9, 5
    return [torch.rand(b, K + 1, 12, 48, 48), torch.randint(0, 7, (b, K)), torch.randn(b, K + 1) * 5,
            torch.randn(b, K), torch.softmax(torch.randn(b, K + 1, 7), -1), (torch.rand(b, K) > 0.2).float(),
            torch.rand(b)]


def get_init_inputs():
    return [7, 12, 72, 3, 5, 30, 320]
