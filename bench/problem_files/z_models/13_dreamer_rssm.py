import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvEncoder(nn.Module):
    def __init__(self, depth=32):
        super().__init__()
        self.conv1 = nn.Conv2d(3, depth, 4, stride=2)
        self.conv2 = nn.Conv2d(depth, 2 * depth, 4, stride=2)
        self.conv3 = nn.Conv2d(2 * depth, 4 * depth, 4, stride=2)
        self.conv4 = nn.Conv2d(4 * depth, 8 * depth, 4, stride=2)

    def forward(self, obs):
        lead = obs.shape[:-3]
        x = obs.reshape(-1, *obs.shape[-3:])
        x = F.elu(self.conv1(x))
        x = F.elu(self.conv2(x))
        x = F.elu(self.conv3(x))
        x = F.elu(self.conv4(x))
        return x.reshape(*lead, -1)


class ConvDecoder(nn.Module):
    def __init__(self, feat, depth=32):
        super().__init__()
        self.fc = nn.Linear(feat, 32 * depth)
        self.depth = depth
        self.deconv1 = nn.ConvTranspose2d(32 * depth, 4 * depth, 5, stride=2)
        self.deconv2 = nn.ConvTranspose2d(4 * depth, 2 * depth, 5, stride=2)
        self.deconv3 = nn.ConvTranspose2d(2 * depth, depth, 6, stride=2)
        self.deconv4 = nn.ConvTranspose2d(depth, 3, 6, stride=2)

    def forward(self, features):
        lead = features.shape[:-1]
        x = self.fc(features).reshape(-1, 32 * self.depth, 1, 1)
        x = F.elu(self.deconv1(x))
        x = F.elu(self.deconv2(x))
        x = F.elu(self.deconv3(x))
        x = self.deconv4(x)
        return x.reshape(*lead, *x.shape[1:])


class NormGRUCell(nn.Module):
    def __init__(self, inp_size, size, update_bias=-1.0):
        super().__init__()
        self.size = size
        self.update_bias = update_bias
        self.layer = nn.Linear(inp_size + size, 3 * size, bias=False)
        self.norm = nn.LayerNorm(3 * size)

    def forward(self, inputs, state):
        parts = self.norm(self.layer(torch.cat([inputs, state], -1)))
        reset, cand, update = torch.split(parts, [self.size] * 3, -1)
        reset = torch.sigmoid(reset)
        cand = torch.tanh(reset * cand)
        update = torch.sigmoid(update + self.update_bias)
        return update * cand + (1 - update) * state


class DenseHead(nn.Module):
    def __init__(self, feat, out, units=400, layers=3):
        super().__init__()
        mods, d = [], feat
        for _ in range(layers):
            mods += [nn.Linear(d, units), nn.ELU()]
            d = units
        mods.append(nn.Linear(d, out))
        self.net = nn.Sequential(*mods)

    def forward(self, x):
        return self.net(x)


class RSSM(nn.Module):
    def __init__(self, action_size, embed_size, stoch=32, deter=600, hidden=600, min_std=0.1):
        super().__init__()
        self.stoch, self.deter, self.min_std = stoch, deter, min_std
        self.img_in = nn.Linear(stoch + action_size, hidden)
        self.cell = NormGRUCell(hidden, deter)
        self.img_out = nn.Linear(deter, hidden)
        self.img_dist = nn.Linear(hidden, 2 * stoch)
        self.obs_out = nn.Linear(deter + embed_size, hidden)
        self.obs_dist = nn.Linear(hidden, 2 * stoch)

    def _stats(self, x):
        mean, std = torch.chunk(x, 2, -1)
        std = 2 * torch.sigmoid(std / 2) + self.min_std
        return mean, std

    def img_step(self, stoch, deter, action, eps):
        x = F.elu(self.img_in(torch.cat([stoch, action], -1)))
        deter = self.cell(x, deter)
        x = F.elu(self.img_out(deter))
        mean, std = self._stats(self.img_dist(x))
        return mean + std * eps, deter, mean, std

    def obs_step(self, stoch, deter, action, embed, is_first, eps):
        keep = 1.0 - is_first
        stoch, deter, action = stoch * keep, deter * keep, action * keep
        _, deter, p_mean, p_std = self.img_step(stoch, deter, action, eps)
        x = F.elu(self.obs_out(torch.cat([deter, embed], -1)))
        mean, std = self._stats(self.obs_dist(x))
        return mean + std * eps, deter, mean, std, p_mean, p_std


def kl_normal(m1, s1, m2, s2):
    return (torch.log(s2 / s1) + (s1 ** 2 + (m1 - m2) ** 2) / (2 * s2 ** 2) - 0.5).sum(-1)


class Model(nn.Module):
    """Dreamer world model update: RSSM observed for T steps, KL balancing, heads, then H imagined steps."""

    def __init__(self, action_size, depth, stoch, deter, horizon, free_nats, kl_balance, discount, lam):
        super().__init__()
        self.horizon, self.free_nats, self.kl_balance = horizon, free_nats, kl_balance
        self.discount, self.lam = discount, lam
        self.encoder = ConvEncoder(depth)
        self.rssm = RSSM(action_size, 8 * depth * 4, stoch, deter, deter)
        feat = stoch + deter
        self.decoder = ConvDecoder(feat, depth)
        self.reward = DenseHead(feat, 1)
        self.value = DenseHead(feat, 1)
        self.actor = DenseHead(feat, action_size)

    def forward(self, obs, action, reward, is_first, eps, img_eps):
        B, T = action.shape[:2]
        embed = self.encoder(obs - 0.5)
        stoch = torch.zeros(B, self.rssm.stoch, device=obs.device)
        deter = torch.zeros(B, self.rssm.deter, device=obs.device)
        posts = []
        for t in range(T):
            out = self.rssm.obs_step(stoch, deter, action[:, t], embed[:, t], is_first[:, t], eps[:, t])
            stoch, deter = out[0], out[1]
            posts.append(out)
        stochs, deters, mean, std, p_mean, p_std = [torch.stack(x, dim=1) for x in zip(*posts)]
        feat = torch.cat([stochs, deters], -1)
        lhs = kl_normal(mean.detach(), std.detach(), p_mean, p_std)
        rhs = kl_normal(mean, std, p_mean.detach(), p_std.detach())
        kl = self.kl_balance * lhs.mean().clamp(min=self.free_nats) + (1 - self.kl_balance) * rhs.mean().clamp(
            min=self.free_nats)
        recon = self.decoder(feat)
        image_loss = 0.5 * ((recon - (obs - 0.5)) ** 2).sum((-1, -2, -3)).mean()
        reward_loss = 0.5 * ((self.reward(feat).squeeze(-1) - reward) ** 2).mean()
        model_loss = image_loss + reward_loss + kl

        # imagine from every posterior state
        s = stochs.detach().flatten(0, 1)
        d = deters.detach().flatten(0, 1)
        feats = []
        for h in range(self.horizon):
            a = torch.tanh(self.actor(torch.cat([s, d], -1).detach()))
            s, d, _, _ = self.rssm.img_step(s, d, a, img_eps[h])
            feats.append(torch.cat([s, d], -1))
        imag = torch.stack(feats)
        r = self.reward(imag).squeeze(-1)
        v = self.value(imag).squeeze(-1)
        next_values = torch.cat([v[1:], v[-1:]], 0)
        inputs = r + self.discount * next_values * (1 - self.lam)
        last = v[-1]
        returns = []
        for h in reversed(range(self.horizon)):
            last = inputs[h] + self.discount * self.lam * last
            returns.append(last)
        returns = torch.stack(list(reversed(returns)))
        weights = torch.cumprod(torch.full_like(returns, self.discount), 0)
        actor_loss = -(weights * returns).mean()
        value_loss = 0.5 * (weights * (self.value(imag.detach()).squeeze(-1) - returns.detach()) ** 2).mean()
        return model_loss, actor_loss, value_loss, feat


B, T, H, A, S = 16, 24, 8, 6, 32


def get_inputs():
    return [
        torch.rand(B, T, 3, 64, 64), torch.rand(B, T, A) * 2 - 1, torch.randn(B, T),
        (torch.rand(B, T, 1) < 0.05).float(), torch.randn(B, T, S), torch.randn(H, B * T, S),
    ]


def get_init_inputs():
    return [A, 48, S, 600, H, 1.0, 0.8, 0.99, 0.95]
