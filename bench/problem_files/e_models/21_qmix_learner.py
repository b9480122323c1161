import torch
import torch as th
import torch.nn as nn
import torch.nn.functional as F


class RNNAgent(nn.Module):
    def __init__(self, input_shape, hidden, n_actions):
        super().__init__()
        self.hidden = hidden
        self.fc1 = nn.Linear(input_shape, hidden)
        self.rnn = nn.GRUCell(hidden, hidden)
        self.fc2 = nn.Linear(hidden, n_actions)

    def init_hidden(self):
        # make hidden states on same device as model
        return self.fc1.weight.new(1, self.hidden).zero_()

    def forward(self, inputs, hidden_state):
        x = F.relu(self.fc1(inputs))
        h_in = hidden_state.reshape(-1, self.hidden)
        h = self.rnn(x, h_in)
        q = self.fc2(h)
        return q, h


class QMixer(nn.Module):
    def __init__(self, n_agents, state_dim, embed_dim, hypernet_embed):
        super().__init__()
        self.n_agents, self.state_dim, self.embed_dim = n_agents, state_dim, embed_dim
        self.hyper_w_1 = nn.Sequential(nn.Linear(state_dim, hypernet_embed), nn.ReLU(), nn.Linear(hypernet_embed, embed_dim * n_agents))
        self.hyper_w_final = nn.Sequential(nn.Linear(state_dim, hypernet_embed), nn.ReLU(), nn.Linear(hypernet_embed, embed_dim))
        # State dependent bias for hidden layer
        self.hyper_b_1 = nn.Linear(state_dim, embed_dim)
        # V(s) instead of a bias for the last layers
        self.V = nn.Sequential(nn.Linear(state_dim, embed_dim), nn.ReLU(), nn.Linear(embed_dim, 1))

    def forward(self, agent_qs, states):
        bs = agent_qs.size(0)
        states = states.reshape(-1, self.state_dim)
        agent_qs = agent_qs.view(-1, 1, self.n_agents)
        # First layer
        w1 = th.abs(self.hyper_w_1(states))
        b1 = self.hyper_b_1(states)
        w1 = w1.view(-1, self.n_agents, self.embed_dim)
        b1 = b1.view(-1, 1, self.embed_dim)
        hidden = F.elu(th.bmm(agent_qs, w1) + b1)
        # Second layer
        w_final = th.abs(self.hyper_w_final(states))
        w_final = w_final.view(-1, self.embed_dim, 1)
        v = self.V(states).view(-1, 1, 1)
        y = th.bmm(hidden, w_final) + v
        return y.view(bs, -1, 1)


class BasicMAC(nn.Module):
    def __init__(self, n_agents, obs_dim, n_actions, hidden):
        super().__init__()
        self.n_agents, self.n_actions = n_agents, n_actions
        self.agent = RNNAgent(obs_dim + n_actions + n_agents, hidden, n_actions)
        self.hidden_states = None

    def init_hidden(self, batch_size):
        self.hidden_states = self.agent.init_hidden().unsqueeze(0).expand(batch_size, self.n_agents, -1)  # bav

    def _build_inputs(self, batch, t):
        bs = batch["obs"].shape[0]
        inputs = []
        inputs.append(batch["obs"][:, t])
        if t == 0:
            inputs.append(th.zeros_like(batch["actions_onehot"][:, t]))
        else:
            inputs.append(batch["actions_onehot"][:, t - 1])
        inputs.append(th.eye(self.n_agents, device=batch["obs"].device).unsqueeze(0).expand(bs, -1, -1))
        return th.cat([x.reshape(bs * self.n_agents, -1) for x in inputs], dim=1)

    def forward(self, batch, t):
        agent_inputs = self._build_inputs(batch, t)
        agent_outs, self.hidden_states = self.agent(agent_inputs, self.hidden_states)
        return agent_outs.view(batch["obs"].shape[0], self.n_agents, -1)


def build_td_lambda_targets(rewards, terminated, mask, target_qs, gamma, td_lambda):
    # Initialise last lambda-return for not terminated episodes
    ret = target_qs.new_zeros(*target_qs.shape)
    ret[:, -1] = target_qs[:, -1] * (1 - th.sum(terminated, dim=1))
    for t in range(ret.shape[1] - 2, -1, -1):
        ret[:, t] = td_lambda * gamma * ret[:, t + 1] + mask[:, t] * (
            rewards[:, t] + (1 - td_lambda) * gamma * target_qs[:, t + 1] * (1 - terminated[:, t])
        )
    # lambda-return from t=0 to t=T-1
    return ret[:, 0:-1]


class Model(nn.Module):
    """QMIX learner (PyMARL): recurrent agents unrolled over an episode, target agents, double Q, monotonic hypernetwork mixer, masked TD(lambda) loss."""

    def __init__(self, n_agents, obs_dim, state_dim, n_actions, hidden, mix, gamma, td_lambda):
        super().__init__()
        self.gamma, self.td_lambda, self.n_actions = gamma, td_lambda, n_actions
        self.mac = BasicMAC(n_agents, obs_dim, n_actions, hidden)
        self.target_mac = BasicMAC(n_agents, obs_dim, n_actions, hidden)
        self.mixer = QMixer(n_agents, state_dim, mix, 2 * mix)
        self.target_mixer = QMixer(n_agents, state_dim, mix, 2 * mix)
        # the targets lag behind the learner
        for a, b in ((self.target_mac, self.mac), (self.target_mixer, self.mixer)):
            for p, q in zip(a.parameters(), b.parameters()):
                p.data.copy_(0.9 * q.data + 0.1 * p.data)
                p.requires_grad_(False)

    def forward(self, obs, state, actions, avail_actions, rewards, terminated, filled):
        batch = {"obs": obs, "actions_onehot": F.one_hot(actions, self.n_actions).to(obs.dtype)}
        T = obs.shape[1]
        actions = actions[:, :-1].unsqueeze(-1)
        rewards, terminated = rewards[:, :-1], terminated[:, :-1].float()
        mask = filled[:, :-1].float()
        mask[:, 1:] = mask[:, 1:] * (1 - terminated[:, :-1])
        # Calculate estimated Q-Values
        mac_out = []
        self.mac.init_hidden(obs.shape[0])
        for t in range(T):
            mac_out.append(self.mac.forward(batch, t=t))
        mac_out = th.stack(mac_out, dim=1)  # Concat over time
        # Pick the Q-Values for the actions taken by each agent
        chosen_action_qvals = th.gather(mac_out[:, :-1], dim=3, index=actions).squeeze(3)  # Remove the last dim
        # Calculate the Q-Values necessary for the target
        with th.no_grad():
            target_mac_out = []
            self.target_mac.init_hidden(obs.shape[0])
            for t in range(T):
                target_mac_out.append(self.target_mac.forward(batch, t=t))
            target_mac_out = th.stack(target_mac_out, dim=1)
            # Mask out unavailable actions; get actions that maximise live Q (for double q-learning)
            mac_out_detach = mac_out.clone().detach()
            mac_out_detach[avail_actions == 0] = -9999999
            cur_max_actions = mac_out_detach.max(dim=3, keepdim=True)[1]
            target_max_qvals = th.gather(target_mac_out, 3, cur_max_actions).squeeze(3)
            target_max_qvals = self.target_mixer(target_max_qvals, state)
            targets = build_td_lambda_targets(rewards, terminated, mask, target_max_qvals, self.gamma, self.td_lambda)
        self.mac.hidden_states = self.target_mac.hidden_states = None
        # Mix
        chosen_action_qvals = self.mixer(chosen_action_qvals, state[:, :-1])
        td_error = chosen_action_qvals - targets.detach()
        mask = mask.expand_as(td_error)
        # 0-out the targets that came from padded data
        masked_td_error = td_error * mask
        # Normal L2 loss, take mean over actual data
        loss = (masked_td_error**2).sum() / mask.sum()
        stats = {
            "td_error_abs": (masked_td_error.detach().abs().sum() / mask.sum()),
            "q_taken_mean": (chosen_action_qvals.detach() * mask).sum() / (mask.sum() * self.mac.n_agents),
            "target_mean": (targets * mask).sum() / (mask.sum() * self.mac.n_agents),
        }
        return loss, stats, mac_out


def get_inputs():
    B, T, N, A = 14, 21, 5, 9
    obs, state = torch.randn(B, T, N, 30), torch.randn(B, T, 48)
    avail = (torch.rand(B, T, N, A) > 0.35).long()
    avail[..., 1] = 1
    noise = torch.rand(B, T, N, A).masked_fill(avail == 0, -1.0)
    actions = noise.argmax(-1)
    length = torch.randint(9, T, (B, 1))
    steps = torch.arange(T)[None]
    terminated = ((steps == length - 1) & (length < T)).long().unsqueeze(-1)
    filled = (steps < length).long().unsqueeze(-1)
    rewards = torch.randn(B, T, 1) * filled
    return [obs, state, actions, avail, rewards, terminated, filled]


def get_init_inputs():
    return [5, 30, 48, 9, 64, 32, 0.99, 0.6]
