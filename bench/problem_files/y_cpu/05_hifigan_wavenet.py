import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

LRELU_SLOPE = 0.1


def get_padding(kernel_size, dilation=1):
    return int((kernel_size * dilation - dilation) / 2)


@torch.no_grad()
def init_weights(m, mean=0.0, std=0.05):
    if isinstance(m, (nn.Conv1d, nn.ConvTranspose1d)):
        m.weight.normal_(mean, std)


class WaveNetConditioner(nn.Module):
    """Gated dilated stack with skip connections over the mel frames."""

    def __init__(self, mel, ch, layers, gin):
        super().__init__()
        self.ch = ch
        self.pre = nn.Conv1d(mel, ch, 1)
        self.cond = weight_norm(nn.Conv1d(gin, 2 * ch * layers, 1))
        self.in_layers = nn.ModuleList()
        self.res_skip = nn.ModuleList()
        for i in range(layers):
            d = 2 ** i
            self.in_layers.append(
                weight_norm(nn.Conv1d(ch, 2 * ch, 3, dilation=d, padding=get_padding(3, d)))
            )
            self.res_skip.append(weight_norm(nn.Conv1d(ch, 2 * ch if i < layers - 1 else ch, 1)))

    def forward(self, x, g):
        x = self.pre(x)
        output = torch.zeros_like(x)
        g = self.cond(g)
        for i in range(len(self.in_layers)):
            off = i * 2 * self.ch
            acts = self.in_layers[i](x) + g[:, off:off + 2 * self.ch, :]
            t, s = torch.tanh(acts[:, :self.ch]), torch.sigmoid(acts[:, self.ch:])
            rs = self.res_skip[i](t * s)
            if i < len(self.in_layers) - 1:
                x = x + rs[:, :self.ch, :]
                output = output + rs[:, self.ch:, :]
            else:
                output = output + rs
        return output


class ResBlock(nn.Module):
    def __init__(self, ch, k, dilations):
        super().__init__()
        self.convs1 = nn.ModuleList(
            [nn.Conv1d(ch, ch, k, 1, dilation=d, padding=get_padding(k, d)) for d in dilations]
        )
        self.convs2 = nn.ModuleList(
            [nn.Conv1d(ch, ch, k, 1, padding=get_padding(k)) for _ in dilations]
        )
        self.apply(init_weights)
        for c in list(self.convs1) + list(self.convs2):
            weight_norm(c)

    def forward(self, x):
        for c1, c2 in zip(self.convs1, self.convs2):
            xt = c1(F.leaky_relu(x, LRELU_SLOPE))
            xt = c2(F.leaky_relu(xt, LRELU_SLOPE))
            x = xt + x
        return x


class Model(nn.Module):
    """HiFi-GAN generator (multi-receptive-field fusion, weight_norm) on top
    of a speaker-conditioned WaveNet stack."""

    def __init__(self, mel, ch, rates, kernels, res_kernels, dilations, speakers, gin):
        super().__init__()
        self.num_kernels = len(res_kernels)
        self.emb_g = nn.Embedding(speakers, gin)
        self.wn = WaveNetConditioner(mel, ch, 4, gin)
        self.ups = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        for i, (u, k) in enumerate(zip(rates, kernels)):
            up = nn.ConvTranspose1d(ch // 2 ** i, ch // 2 ** (i + 1), k, u, padding=(k - u) // 2)
            init_weights(up)
            self.ups.append(weight_norm(up))
            for rk in res_kernels:
                self.resblocks.append(ResBlock(ch // 2 ** (i + 1), rk, dilations))
        self.conv_post = weight_norm(nn.Conv1d(ch // 2 ** len(rates), 1, 7, 1, padding=3))

    def forward(self, mel, spk):
        g = self.emb_g(spk).unsqueeze(-1)
        x = self.wn(mel, g)
        for i, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, LRELU_SLOPE))
            xs = None
            for j in range(self.num_kernels):
                r = self.resblocks[i * self.num_kernels + j](x)
                xs = r if xs is None else xs + r
            x = xs / self.num_kernels
        x = self.conv_post(F.leaky_relu(x))
        return torch.tanh(x)


def get_inputs():
    g = torch.Generator().manual_seed(4)
    return [torch.randn(2, 80, 45, generator=g), torch.randint(0, 9, (2,), generator=g)]


def get_init_inputs():
    return [80, 96, [8, 5, 2], [16, 11, 4], [3, 7], [1, 3, 5], 9, 24]
