import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm


def kaiser_sinc_filter1d(cutoff, half_width, kernel_size):
    even = kernel_size % 2 == 0
    half_size = kernel_size // 2
    A = 2.285 * (half_size - 1) * 3.141592653589793 * (4 * half_width) + 7.95
    if A > 50.0:
        beta = 0.1102 * (A - 8.7)
    elif A >= 21.0:
        beta = 0.5842 * (A - 21) ** 0.4 + 0.07886 * (A - 21.0)
    else:
        beta = 0.0
    window = torch.kaiser_window(kernel_size, beta=beta, periodic=False)
    if even:
        time = torch.arange(-half_size, half_size) + 0.5
    else:
        time = torch.arange(kernel_size) - half_size
    filter_ = 2 * cutoff * window * torch.sinc(2 * cutoff * time)
    filter_ /= filter_.sum()
    return filter_.view(1, 1, kernel_size)


class UpSample1d(nn.Module):
    def __init__(self, ratio=2):
        super().__init__()
        self.ratio = self.stride = ratio
        self.kernel_size = int(6 * ratio // 2) * 2
        self.pad = self.kernel_size // ratio - 1
        self.pad_left = self.pad * self.stride + (self.kernel_size - self.stride) // 2
        self.pad_right = self.pad * self.stride + (self.kernel_size - self.stride + 1) // 2
        self.register_buffer("filter", kaiser_sinc_filter1d(0.5 / ratio, 0.6 / ratio, self.kernel_size))

    def forward(self, x):
        _, C, _ = x.shape
        x = F.pad(x, (self.pad, self.pad), mode="replicate")
        x = self.ratio * F.conv_transpose1d(x, self.filter.expand(C, -1, -1), stride=self.stride, groups=C)
        return x[..., self.pad_left : -self.pad_right]


class DownSample1d(nn.Module):
    def __init__(self, ratio=2):
        super().__init__()
        self.ratio = ratio
        self.kernel_size = int(6 * ratio // 2) * 2
        self.pad_left = self.kernel_size // 2 - int(self.kernel_size % 2 == 0)
        self.pad_right = self.kernel_size // 2
        self.register_buffer("filter", kaiser_sinc_filter1d(0.5 / ratio, 0.6 / ratio, self.kernel_size))

    def forward(self, x):
        _, C, _ = x.shape
        x = F.pad(x, (self.pad_left, self.pad_right), mode="replicate")
        return F.conv1d(x, self.filter.expand(C, -1, -1), stride=self.ratio, groups=C)


class SnakeBeta(nn.Module):
    def __init__(self, in_features, alpha_logscale=True):
        super().__init__()
        self.alpha_logscale = alpha_logscale
        self.alpha = nn.Parameter(torch.randn(in_features) * 0.2)
        self.beta = nn.Parameter(torch.randn(in_features) * 0.2)
        self.no_div_by_zero = 0.000000001

    def forward(self, x):
        alpha = self.alpha.unsqueeze(0).unsqueeze(-1)
        beta = self.beta.unsqueeze(0).unsqueeze(-1)
        if self.alpha_logscale:
            alpha = torch.exp(alpha)
            beta = torch.exp(beta)
        x = x + (1.0 / (beta + self.no_div_by_zero)) * torch.pow(torch.sin(x * alpha), 2)
        return x


class Activation1d(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.act = activation
        self.upsample = UpSample1d(2)
        self.downsample = DownSample1d(2)

    def forward(self, x):
        x = self.upsample(x)
        x = self.act(x)
        return self.downsample(x)


def get_padding(kernel_size, dilation=1):
    return int((kernel_size * dilation - dilation) / 2)


def init_weights(m, mean=0.0, std=0.05):
    if isinstance(m, (nn.Conv1d, nn.ConvTranspose1d)):
        m.weight.data.normal_(mean, std)


class AMPBlock1(nn.Module):
    def __init__(self, channels, kernel_size=3, dilation=(1, 3, 5)):
        super().__init__()
        convs1 = [nn.Conv1d(channels, channels, kernel_size, 1, dilation=d, padding=get_padding(kernel_size, d)) for d in dilation]
        convs2 = [nn.Conv1d(channels, channels, kernel_size, 1, dilation=1, padding=get_padding(kernel_size)) for _ in dilation]
        for c in convs1 + convs2:
            init_weights(c)
        self.convs1 = nn.ModuleList([weight_norm(c) for c in convs1])
        self.convs2 = nn.ModuleList([weight_norm(c) for c in convs2])
        self.num_layers = len(self.convs1) + len(self.convs2)
        self.activations = nn.ModuleList([Activation1d(activation=SnakeBeta(channels)) for _ in range(self.num_layers)])

    def forward(self, x):
        acts1, acts2 = self.activations[::2], self.activations[1::2]
        for c1, c2, a1, a2 in zip(self.convs1, self.convs2, acts1, acts2):
            xt = a1(x)
            xt = c1(xt)
            xt = a2(xt)
            xt = c2(xt)
            x = xt + x
        return x


class Model(nn.Module):
    """BigVGAN generator: weight-normalized transposed convolutions and anti-aliased periodic (SnakeBeta) multi-kernel residual blocks."""

    def __init__(self, num_mels, initial_channel, rates, kernels, res_kernels, res_dilations):
        super().__init__()
        self.num_kernels, self.num_upsamples = len(res_kernels), len(rates)
        self.conv_pre = weight_norm(nn.Conv1d(num_mels, initial_channel, 7, 1, padding=3))
        self.ups = nn.ModuleList()
        for i, (u, k) in enumerate(zip(rates, kernels)):
            up = nn.ConvTranspose1d(initial_channel // (2**i), initial_channel // (2 ** (i + 1)), k, u, padding=(k - u) // 2)
            init_weights(up)
            self.ups.append(nn.ModuleList([weight_norm(up)]))
        self.resblocks = nn.ModuleList()
        for i in range(len(self.ups)):
            ch = initial_channel // (2 ** (i + 1))
            for k, d in zip(res_kernels, res_dilations):
                self.resblocks.append(AMPBlock1(ch, k, d))
        self.activation_post = Activation1d(activation=SnakeBeta(ch))
        self.conv_post = weight_norm(nn.Conv1d(ch, 1, 7, 1, padding=3, bias=False))
        self.use_tanh_at_final = True

    def forward(self, x):
        x = self.conv_pre(x)
        for i in range(self.num_upsamples):
            for i_up in range(len(self.ups[i])):
                x = self.ups[i][i_up](x)
            xs = None
            for j in range(self.num_kernels):
                if xs is None:
                    xs = self.resblocks[i * self.num_kernels + j](x)
                else:
                    xs += self.resblocks[i * self.num_kernels + j](x)
            x = xs / self.num_kernels
        x = self.activation_post(x)
        x = self.conv_post(x)
        if self.use_tanh_at_final:
            x = torch.tanh(x)
        else:
            x = torch.clamp(x, min=-1.0, max=1.0)
        return x


def get_inputs():
    return [torch.randn(1, 40, 33)]


def get_init_inputs():
    return [40, 96, [4, 4], [8, 8], [3, 7], [(1, 3, 5), (1, 3)]]
