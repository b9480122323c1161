import torch
import torch.nn as nn
import torch.nn.functional as F


class ScaledFloatFrame(nn.Module):
    def forward(self, obs):
        return obs.float() / 255.0


class R2D2Net(nn.Module):
    """Convolutional torso, a hand-unrolled LSTM reset at episode ends, dueling heads."""

    def __init__(self, frame_stack, h, w, num_actions, hidden):
        super().__init__()
        self.num_actions, self.hidden = num_actions, hidden
        self.scale = ScaledFloatFrame()
        self.conv = nn.Sequential(
            nn.Conv2d(frame_stack, 16, 8, 4),
            nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, 4, 2),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 32, 3, 1),
            nn.ReLU(inplace=True),
        )
        for s, k in ((4, 8), (2, 4), (1, 3)):
            h, w = (h - k) // s + 1, (w - k) // s + 1
        self.fc = nn.Linear(32 * h * w, hidden)
        self.core = nn.LSTMCell(hidden + num_actions + 1, hidden)
        self.adv = nn.Sequential(nn.Linear(hidden, 128), nn.ReLU(), nn.Linear(128, num_actions))
        self.val = nn.Sequential(nn.Linear(hidden, 128), nn.ReLU(), nn.Linear(128, 1))

    def torso(self, obs, last_action, last_reward):
        T, B = obs.shape[:2]
        x = self.conv(self.scale(torch.flatten(obs, 0, 1)))
        x = F.relu(self.fc(x.view(T * B, -1)))
        one_hot_last_action = F.one_hot(last_action.view(T * B), self.num_actions).float()
        clipped_reward = torch.clamp(last_reward, -1, 1).view(T * B, 1)
        return torch.cat([x, clipped_reward, one_hot_last_action], dim=-1).view(T, B, -1)

    def unroll(self, core_input, not_done, state):
        h, c = state
        outputs = []
        for input, nd in zip(core_input.unbind(), not_done.unbind()):
            # Reset core state to zero whenever an episode ended.
            nd = nd.view(-1, 1)
            h, c = self.core(input, (nd * h, nd * c))
            outputs.append(h)
        return torch.stack(outputs), (h, c)

    def head(self, core_output):
        adv = self.adv(core_output)
        val = self.val(core_output)
        return val + adv - adv.mean(dim=-1, keepdim=True)

    def forward(self, obs, last_action, last_reward, not_done, state):
        core_input = self.torso(obs, last_action, last_reward)
        core_output, state = self.unroll(core_input, not_done, state)
        return self.head(core_output), state


def value_rescale(x, eps=1e-3):
    return torch.sign(x) * (torch.sqrt(torch.abs(x) + 1.0) - 1.0) + eps * x


def value_rescale_inv(x, eps=1e-3):
    n = torch.sqrt(1.0 + 4.0 * eps * (torch.abs(x) + 1.0 + eps)) - 1.0
    return torch.sign(x) * (torch.square(n / (2.0 * eps)) - 1.0)


def n_step_bellman_target(rewards, done, q_target, gamma, n_steps):
    # rewards, done, q_target: [T, B]; in the style of SEED RL
    bellman_target = torch.cat(
        [torch.zeros_like(q_target[0:1]), q_target]
        + [q_target[-1:] / gamma**k for k in range(1, n_steps)],
        dim=0,
    )
    done = torch.cat([done] + [torch.zeros_like(done[0:1])] * n_steps, dim=0)
    rewards = torch.cat([rewards] + [torch.zeros_like(rewards[0:1])] * n_steps, dim=0)
    for _ in range(n_steps):
        rewards = rewards[:-1]
        done = done[:-1]
        bellman_target = rewards + gamma * (1.0 - done) * bellman_target[1:]
    return bellman_target


class Model(nn.Module):
    """R2D2 learner: burn-in without gradient, double Q-learning on n-step rescaled targets, sequence priorities, weighted loss."""

    def __init__(self, frame_stack, h, w, num_actions, hidden, burn_in, gamma, n_steps, eta):
        super().__init__()
        self.burn_in, self.gamma, self.n_steps, self.eta = burn_in, gamma, n_steps, eta
        self.online = R2D2Net(frame_stack, h, w, num_actions, hidden)
        self.target = R2D2Net(frame_stack, h, w, num_actions, hidden)
        for p, q in zip(self.online.parameters(), self.target.parameters()):
            q.data.copy_(p.data * 0.95)
            q.requires_grad_(False)

    def forward(self, obs, action, reward, done, h0, c0, is_weights):
        T, B = obs.shape[:2]
        not_done = (~done).float()
        last_action = torch.cat([torch.zeros_like(action[:1]), action[:-1]], dim=0)
        last_reward = torch.cat([torch.zeros_like(reward[:1]), reward[:-1]], dim=0)
        nd = torch.cat([torch.ones_like(not_done[:1]), not_done[:-1]], dim=0)
        b = self.burn_in
        with torch.no_grad():
            _, state = self.online(obs[:b], last_action[:b], last_reward[:b], nd[:b], (h0, c0))
            _, target_state = self.target(obs[:b], last_action[:b], last_reward[:b], nd[:b], (h0, c0))
        state = tuple(s.detach() for s in state)
        q, _ = self.online(obs[b:], last_action[b:], last_reward[b:], nd[b:], state)
        with torch.no_grad():
            target_q, _ = self.target(obs[b:], last_action[b:], last_reward[b:], nd[b:], target_state)
            best_action = q.argmax(dim=-1)
            q_max = target_q.gather(-1, best_action.unsqueeze(-1)).squeeze(-1)
            boot = value_rescale_inv(q_max)
            target = n_step_bellman_target(reward[b:-1], done[b:-1].float(), boot[1:], self.gamma, self.n_steps)
            target = value_rescale(target[: T - b - 1])
        q_taken = q[:-1].gather(-1, action[b:-1].unsqueeze(-1)).squeeze(-1)
        td_error = target - q_taken
        abs_td_error = td_error.abs().detach()
        priorities = self.eta * abs_td_error.max(dim=0).values + (1 - self.eta) * abs_td_error.mean(dim=0)
        norm_weights = is_weights / is_weights.max()
        loss = 0.5 * torch.sum(td_error.square(), dim=0)
        loss = torch.mean(norm_weights * loss)
        return {"loss": loss, "priorities": priorities, "q": q, "mean_q": q_taken.mean().detach()}


def get_inputs():
    T, B, A = 14, 4, 6
    done = torch.zeros(T, B, dtype=torch.bool)
    done[5, 1] = True
    done[9, 3] = True
    return [
        torch.randint(0, 256, (T, B, 4, 60, 52), dtype=torch.uint8),
        torch.randint(0, A, (T, B)),
        torch.randn(T, B),
        done,
        torch.randn(B, 192) * 0.1,
        torch.randn(B, 192) * 0.1,
        torch.rand(B) + 0.1,
    ]


def get_init_inputs():
    return [4, 60, 52, 6, 192, 4, 0.997, 3, 0.9]
