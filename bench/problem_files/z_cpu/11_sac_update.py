import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

LOG_STD_MAX = 2
LOG_STD_MIN = -5


class SoftQNetwork(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(obs_dim + act_dim, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, 1)

    def forward(self, x, a):
        x = torch.cat([x, a], 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


class Actor(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(obs_dim, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc_mean = nn.Linear(hidden, act_dim)
        self.fc_logstd = nn.Linear(hidden, act_dim)
        self.register_buffer("action_scale", torch.full((act_dim,), 2.0))
        self.register_buffer("action_bias", torch.zeros(act_dim))

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        mean = self.fc_mean(x)
        log_std = torch.tanh(self.fc_logstd(x))
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std + 1)
        return mean, log_std

    def get_action(self, x, eps):
        mean, log_std = self(x)
        std = log_std.exp()
        x_t = mean + std * eps
        y_t = torch.tanh(x_t)
        action = y_t * self.action_scale + self.action_bias
        log_prob = -((x_t - mean) ** 2) / (2 * std ** 2) - log_std - 0.5 * math.log(2 * math.pi)
        log_prob = log_prob - torch.log(self.action_scale * (1 - y_t.pow(2)) + 1e-6)
        return action, log_prob.sum(1, keepdim=True)


class Model(nn.Module):
    """SAC update losses with twin critics, target critics and automatic entropy tuning; noise is an input."""

    def __init__(self, obs_dim, act_dim, hidden, gamma):
        super().__init__()
        self.actor = Actor(obs_dim, act_dim, hidden)
        self.qf1 = SoftQNetwork(obs_dim, act_dim, hidden)
        self.qf2 = SoftQNetwork(obs_dim, act_dim, hidden)
        self.qf1_target = copy.deepcopy(self.qf1).requires_grad_(False)
        self.qf2_target = copy.deepcopy(self.qf2).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.zeros(1) - 1.0)
        self.target_entropy = -float(act_dim)
        self.gamma = gamma

    def forward(self, obs, actions, rewards, next_obs, dones, eps, next_eps):
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_actions, next_log_pi = self.actor.get_action(next_obs, next_eps)
            q1_next = self.qf1_target(next_obs, next_actions)
            q2_next = self.qf2_target(next_obs, next_actions)
            min_q_next = torch.min(q1_next, q2_next) - alpha * next_log_pi
            next_q_value = rewards.flatten() + (1 - dones.flatten()) * self.gamma * min_q_next.view(-1)
        q1 = self.qf1(obs, actions).view(-1)
        q2 = self.qf2(obs, actions).view(-1)
        qf_loss = F.mse_loss(q1, next_q_value) + F.mse_loss(q2, next_q_value)
        pi, log_pi = self.actor.get_action(obs, eps)
        min_q_pi = torch.min(self.qf1(obs, pi), self.qf2(obs, pi))
        actor_loss = ((alpha * log_pi) - min_q_pi).mean()
        alpha_loss = (-self.log_alpha.exp() * (log_pi.detach() + self.target_entropy)).mean()
        with torch.no_grad():
            td_error = (0.5 * (q1 + q2) - next_q_value).abs()
        return qf_loss, actor_loss, alpha_loss, td_error


B, O, A = 512, 67, 21


def get_inputs():
    return [torch.randn(B, O), torch.rand(B, A) * 4 - 2, torch.randn(B, 1), torch.randn(B, O),
            (torch.rand(B, 1) < 0.05).float(), torch.randn(B, A), torch.randn(B, A)]


def get_init_inputs():
    return [O, A, 400, 0.99]
