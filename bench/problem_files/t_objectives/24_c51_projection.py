import torch
import torch.nn as nn
import torch.nn.functional as F


class DuelingC51(nn.Module):
    def __init__(self, obs, hidden, n_act, atoms):
        super().__init__()
        self.n_act, self.atoms = n_act, atoms
        self.body = nn.Sequential(nn.Linear(obs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.v = nn.Linear(hidden, atoms)
        self.a = nn.Linear(hidden, n_act * atoms)

    def forward(self, x, log=False):
        h = self.body(x)
        v = self.v(h).view(-1, 1, self.atoms)
        a = self.a(h).view(-1, self.n_act, self.atoms)
        q = v + a - a.mean(1, keepdim=True)
        return F.log_softmax(q, dim=2) if log else F.softmax(q, dim=2)


class Model(nn.Module):
    """Rainbow style categorical projection, n-step double-Q targets, prioritised weights."""

    def __init__(self, obs, hidden, n_act, atoms, v_min, v_max, gamma, n_step):
        super().__init__()
        self.online = DuelingC51(obs, hidden, n_act, atoms)
        self.target = DuelingC51(obs, hidden, n_act, atoms)
        for p in self.target.parameters():
            p.requires_grad_(False)
        self.atoms, self.v_min, self.v_max = atoms, v_min, v_max
        self.delta_z = (v_max - v_min) / (atoms - 1)
        self.discount = gamma ** n_step
        self.n_step, self.gamma = n_step, gamma
        self.register_buffer("support", torch.linspace(v_min, v_max, atoms))

    def forward(self, states, actions, rewards, next_states, nonterminals, weights):
        B = states.size(0)
        log_ps = self.online(states, log=True)
        log_ps_a = log_ps[range(B), actions]
        with torch.no_grad():
            pns = self.online(next_states)
            dns = self.support.expand_as(pns) * pns
            argmax = dns.sum(2).argmax(1)
            pns_a = self.target(next_states)[torch.arange(B), argmax]
            disc = self.gamma ** torch.arange(self.n_step, dtype=rewards.dtype)
            R = rewards @ disc
            Tz = R.unsqueeze(1) + nonterminals * self.discount * self.support.unsqueeze(0)
            Tz = Tz.clamp(min=self.v_min, max=self.v_max)
            b = (Tz - self.v_min) / self.delta_z
            l, u = b.floor().to(torch.int64), b.ceil().to(torch.int64)
            l[(u > 0) * (l == u)] -= 1
            u[(l < (self.atoms - 1)) * (l == u)] += 1
            m = states.new_zeros(B, self.atoms)
            offset = torch.arange(0, B * self.atoms, self.atoms).unsqueeze(1).expand(B, self.atoms).to(actions)
            m.view(-1).index_add_(0, (l + offset).view(-1), (pns_a * (u.float() - b)).view(-1))
            m.view(-1).index_add_(0, (u + offset).view(-1), (pns_a * (b - l.float())).view(-1))
        loss = -torch.sum(m * log_ps_a, 1)
        return (weights * loss).mean(), loss.detach()


def get_inputs():
    B = 37
    return [
        torch.randn(B, 44), torch.randint(0, 9, (B,)), torch.randn(B, 3), torch.randn(B, 44),
        (torch.rand(B, 1) > 0.1).float(), 0.3 + 0.7 * torch.rand(B),
    ]


def get_init_inputs():
    return [44, 72, 9, 51, -10.0, 10.0, 0.99, 3]
