import torch
import torch.nn as nn
import torch.nn.functional as F


class AtariNet(nn.Module):
    """Deep IMPALA torso with a core LSTM reset at episode ends (torchbeast style)."""

    def __init__(self, in_ch, num_actions, hidden, channels):
        super().__init__()
        self.num_actions = num_actions
        self.feat_convs, self.resnet1, self.resnet2 = [], [], []
        for num_ch in channels:
            self.feat_convs.append(nn.Sequential(nn.Conv2d(in_ch, num_ch, 3, 1, 1), nn.MaxPool2d(3, stride=2, padding=1)))
            in_ch = num_ch
            for lst in (self.resnet1, self.resnet2):
                lst.append(nn.Sequential(nn.ReLU(), nn.Conv2d(in_ch, in_ch, 3, 1, 1), nn.ReLU(), nn.Conv2d(in_ch, in_ch, 3, 1, 1)))
        self.feat_convs = nn.ModuleList(self.feat_convs)
        self.resnet1, self.resnet2 = nn.ModuleList(self.resnet1), nn.ModuleList(self.resnet2)
        self.fc = nn.Linear(channels[-1] * 5 * 5, hidden)
        self.core = nn.LSTM(hidden + 1 + num_actions, hidden, num_layers=1)
        self.policy = nn.Linear(hidden, num_actions)
        self.baseline = nn.Linear(hidden, 1)

    def forward(self, frame, reward, done, last_action, core_state):
        T, B = frame.shape[:2]
        x = torch.flatten(frame, 0, 1) / 255.0
        for i, fconv in enumerate(self.feat_convs):
            x = fconv(x)
            res_input = x
            x = self.resnet1[i](x)
            x += res_input
            res_input = x
            x = self.resnet2[i](x)
            x += res_input
        x = F.relu(x)
        x = x.view(T * B, -1)
        x = F.relu(self.fc(x))
        clipped_reward = torch.clamp(reward, -1, 1).view(T * B, 1)
        one_hot = F.one_hot(last_action.view(T * B), self.num_actions).to(x.dtype)
        core_input = torch.cat([x, clipped_reward, one_hot], dim=-1).view(T, B, -1)
        outs = []
        notdone = (1 - done).to(x.dtype)
        for inp, nd in zip(core_input.unbind(), notdone.unbind()):
            nd = nd.view(1, -1, 1)
            core_state = tuple(nd * s for s in core_state)
            output, core_state = self.core(inp.unsqueeze(0), core_state)
            outs.append(output)
        core = torch.flatten(torch.cat(outs), 0, 1)
        return self.policy(core).view(T, B, -1), self.baseline(core).view(T, B)


@torch.no_grad()
def vtrace(log_rhos, discounts, rewards, values, bootstrap, clip_rho=1.0):
    rhos = torch.exp(log_rhos)
    clipped = torch.clamp(rhos, max=clip_rho)
    cs = torch.clamp(rhos, max=1.0)
    values_t1 = torch.cat([values[1:], bootstrap.unsqueeze(0)], dim=0)
    deltas = clipped * (rewards + discounts * values_t1 - values)
    acc = torch.zeros_like(bootstrap)
    result = []
    for t in range(discounts.shape[0] - 1, -1, -1):
        acc = deltas[t] + discounts[t] * cs[t] * acc
        result.append(acc)
    result.reverse()
    vs = torch.stack(result) + values
    vs_t1 = torch.cat([vs[1:], bootstrap.unsqueeze(0)], dim=0)
    return vs, clipped * (rewards + discounts * vs_t1 - values)


class Model(nn.Module):
    """IMPALA learner step: ResNet-LSTM agent, V-trace targets, policy, value and entropy losses."""

    def __init__(self, in_ch, num_actions, hidden, channels, gamma, ent_cost, value_cost):
        super().__init__()
        self.agent = AtariNet(in_ch, num_actions, hidden, channels)
        self.gamma, self.ent_cost, self.value_cost = gamma, ent_cost, value_cost

    def forward(self, frame, reward, done, action, behavior_logits, h0, c0):
        last_action = torch.cat([torch.zeros_like(action[:1]), action[:-1]], 0)
        logits, baseline = self.agent(frame, reward, done, last_action, (h0, c0))
        bootstrap = baseline[-1].detach()
        logits, values = logits[:-1], baseline[:-1]
        act, b_logits = action[:-1], behavior_logits[:-1]
        rewards = torch.clamp(reward[1:], -1, 1)
        discounts = (1 - done[1:]).to(values.dtype) * self.gamma
        logp = F.log_softmax(logits, -1)
        target_lp = torch.gather(logp, 2, act.unsqueeze(-1)).squeeze(-1)
        behav_lp = -F.nll_loss(F.log_softmax(torch.flatten(b_logits, 0, 1), -1), torch.flatten(act), reduction="none").view_as(act)
        vs, adv = vtrace((target_lp - behav_lp).detach(), discounts, rewards, values.detach(), bootstrap)
        pg_loss = -(target_lp * adv).sum()
        baseline_loss = 0.5 * ((vs - values) ** 2).sum()
        entropy_loss = (logp.exp() * logp).sum()
        total = pg_loss + self.value_cost * baseline_loss + self.ent_cost * entropy_loss
        return total, vs


def get_inputs():
    T, B, A = 11, 3, 6
    return [
        torch.randint(0, 256, (T, B, 4, 40, 40)).float(), torch.randn(T, B), (torch.rand(T, B) < 0.1).long(),
        torch.randint(0, A, (T, B)), torch.randn(T, B, A), torch.zeros(1, B, 96), torch.zeros(1, B, 96),
    ]


def get_init_inputs():
    return [4, 6, 96, (16, 24, 24), 0.99, 0.006, 0.5]
