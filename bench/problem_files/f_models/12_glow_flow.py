import torch
import torch.nn as nn
import torch.nn.functional as F


def squeeze2d(input, factor):
    B, C, H, W = input.size()
    x = input.view(B, C, H // factor, factor, W // factor, factor)
    x = x.permute(0, 1, 3, 5, 2, 4).contiguous()
    return x.view(B, C * factor * factor, H // factor, W // factor)


def split_feature(tensor, type="split"):
    C = tensor.size(1)
    if type == "split":
        return tensor[:, : C // 2, ...], tensor[:, C // 2 :, ...]
    return tensor[:, 0::2, ...], tensor[:, 1::2, ...]


def gaussian_p(mean, logs, x):
    return -0.5 * (logs * 2.0 + ((x - mean) ** 2) / torch.exp(logs * 2.0) + 1.8378770664093453)


def gaussian_likelihood(mean, logs, x):
    return torch.sum(gaussian_p(mean, logs, x), dim=[1, 2, 3])


class ActNorm2d(nn.Module):
    def __init__(self, num_features, scale=1.0):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(1, num_features, 1, 1) * 0.05)
        self.logs = nn.Parameter(torch.randn(1, num_features, 1, 1) * 0.05)
        self.num_features, self.scale = num_features, float(scale)

    def forward(self, input, logdet=None):
        input = input + self.bias
        input = input * torch.exp(self.logs)
        if logdet is not None:
            b, c, h, w = input.shape
            logdet = logdet + torch.sum(self.logs) * h * w
        return input, logdet


class Conv2d(nn.Module):
    def __init__(self, in_channels, out_channels, k):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, k, 1, (k - 1) // 2, bias=False)
        self.conv.weight.data.normal_(mean=0.0, std=0.05)
        self.actnorm = ActNorm2d(out_channels)

    def forward(self, input):
        x = self.conv(input)
        x, _ = self.actnorm(x)
        return x


class Conv2dZeros(nn.Module):
    def __init__(self, in_channels, out_channels, logscale_factor=3):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, 1, 1)
        self.conv.weight.data.normal_(std=0.02)
        self.conv.bias.data.zero_()
        self.logscale_factor = logscale_factor
        self.logs = nn.Parameter(torch.zeros(out_channels, 1, 1))

    def forward(self, input):
        output = self.conv(input)
        return output * torch.exp(self.logs * self.logscale_factor)


class InvertibleConv1x1(nn.Module):
    def __init__(self, num_channels):
        super().__init__()
        w_shape = [num_channels, num_channels]
        w_init = torch.linalg.qr(torch.randn(*w_shape))[0]
        p, lower, upper = torch.linalg.lu(w_init)
        s = torch.diag(upper)
        sign_s = torch.sign(s)
        log_s = torch.log(torch.abs(s))
        upper = torch.triu(upper, 1)
        l_mask = torch.tril(torch.ones(w_shape), -1)
        self.register_buffer("p", p)
        self.register_buffer("sign_s", sign_s)
        self.lower, self.log_s, self.upper = nn.Parameter(lower), nn.Parameter(log_s), nn.Parameter(upper)
        self.register_buffer("l_mask", l_mask)
        self.register_buffer("eye", torch.eye(*w_shape))
        self.w_shape = w_shape

    def get_weight(self, input):
        b, c, h, w = input.shape
        lower = self.lower * self.l_mask + self.eye
        u = self.upper * self.l_mask.transpose(0, 1).contiguous()
        u = u + torch.diag(self.sign_s * torch.exp(self.log_s))
        dlogdet = torch.sum(self.log_s) * h * w
        weight = torch.matmul(self.p, torch.matmul(lower, u))
        return weight.view(self.w_shape[0], self.w_shape[1], 1, 1), dlogdet

    def forward(self, input, logdet=None):
        weight, dlogdet = self.get_weight(input)
        z = F.conv2d(input, weight)
        if logdet is not None:
            logdet = logdet + dlogdet
        return z, logdet


def get_block(in_channels, out_channels, hidden_channels):
    return nn.Sequential(
        Conv2d(in_channels, hidden_channels, 3),
        nn.ReLU(inplace=False),
        Conv2d(hidden_channels, hidden_channels, 1),
        nn.ReLU(inplace=False),
        Conv2dZeros(hidden_channels, out_channels),
    )


class FlowStep(nn.Module):
    def __init__(self, in_channels, hidden_channels):
        super().__init__()
        self.actnorm = ActNorm2d(in_channels)
        self.invconv = InvertibleConv1x1(in_channels)
        self.block = get_block(in_channels // 2, in_channels, hidden_channels)

    def forward(self, input, logdet):
        z, logdet = self.actnorm(input, logdet)
        z, logdet = self.invconv(z, logdet)
        z1, z2 = split_feature(z, "split")
        h = self.block(z1)
        shift, scale = split_feature(h, "cross")
        scale = torch.sigmoid(scale + 2.0)
        z2 = z2 + shift
        z2 = z2 * scale
        logdet = torch.sum(torch.log(scale), dim=[1, 2, 3]) + logdet
        return torch.cat((z1, z2), dim=1), logdet


class Split2d(nn.Module):
    def __init__(self, num_channels):
        super().__init__()
        self.conv = Conv2dZeros(num_channels // 2, num_channels)

    def forward(self, input, logdet):
        z1, z2 = split_feature(input, "split")
        h = self.conv(z1)
        mean, logs = split_feature(h, "cross")
        logdet = gaussian_likelihood(mean, logs, z2) + logdet
        return z1, logdet, z2


class Model(nn.Module):
    """Glow: multi-scale normalizing flow with actnorm, LU-decomposed 1x1 convolutions, affine couplings, learned top prior, class loss."""

    def __init__(self, image_shape, hidden_channels, K, L, y_classes):
        super().__init__()
        C, H, W = image_shape
        self.n_bins, self.L = 2.0**8, L
        self.levels, self.splits = nn.ModuleList(), nn.ModuleList()
        for i in range(L):
            C, H, W = C * 4, H // 2, W // 2
            self.levels.append(nn.ModuleList([FlowStep(C, hidden_channels) for _ in range(K)]))
            if i < L - 1:
                self.splits.append(Split2d(C))
                C = C // 2
        self.learn_top_fn = Conv2dZeros(C * 2, C * 2)
        self.project_ycond = nn.Linear(y_classes, 2 * C)
        self.project_class = nn.Linear(C, y_classes)
        self.register_buffer("prior_h", torch.randn([1, C * 2, H, W]) * 0.1)

    def prior(self, data, y_onehot):
        h = self.prior_h.repeat(data.shape[0], 1, 1, 1)
        channels = h.size(1)
        h = self.learn_top_fn(h)
        yp = self.project_ycond(y_onehot)
        h += yp.view(data.shape[0], channels, 1, 1)
        return split_feature(h, "split")

    def forward(self, x, noise, y_onehot):
        b, c, h, w = x.shape
        z = x + noise / self.n_bins  # uniform_binning_correction
        chw = c * h * w
        logdet = -5.545177444479562 * chw * torch.ones(b, device=x.device)
        latents = []
        for i in range(self.L):
            z = squeeze2d(z, factor=2)
            for step in self.levels[i]:
                z, logdet = step(z, logdet)
            if i < self.L - 1:
                z, logdet, z2 = self.splits[i](z, logdet)
                latents.append(z2)
        mean, logs = self.prior(x, y_onehot)
        objective = logdet + gaussian_likelihood(mean, logs, z)
        y_logits = self.project_class(z.mean(2).mean(2))
        bpd = (-objective) / (0.6931471805599453 * chw)
        losses = {"nll": torch.mean(bpd)}
        losses["loss_classes"] = F.binary_cross_entropy_with_logits(y_logits, y_onehot)
        losses["total_loss"] = losses["nll"] + 0.01 * losses["loss_classes"]
        return z, latents, bpd, losses


def get_inputs():
    y = F.one_hot(torch.tensor([1, 7, 4]), 10).float()
    return [torch.floor(torch.rand(3, 3, 32, 24) * 256) / 256 - 0.5, torch.rand(3, 3, 32, 24), y]


def get_init_inputs():
    return [(3, 32, 24), 128, 4, 3, 10]
