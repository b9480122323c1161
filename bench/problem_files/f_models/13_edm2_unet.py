import torch
import torch.nn.functional as F


def normalize(x, dim=None, eps=1e-4):
    if dim is None:
        dim = list(range(1, x.ndim))
    norm = torch.linalg.vector_norm(x, dim=dim, keepdim=True, dtype=torch.float32)
    norm = torch.add(eps, norm, alpha=(norm.numel() / x.numel()) ** 0.5)
    return x / norm.to(x.dtype)


def resample(x, f=(1, 1), mode="keep"):
    if mode == "keep":
        return x
    pad = (len(f) - 1) // 2
    f = torch.as_tensor(f, dtype=torch.float32, device=x.device)
    f = f / f.sum()
    f = torch.outer(f, f)[None, None, :, :].to(x.dtype)
    c = x.shape[1]
    if mode == "down":
        return F.conv2d(x, f.tile([c, 1, 1, 1]), groups=c, stride=2, padding=(pad,))
    assert mode == "up"
    return F.conv_transpose2d(x, (f * 4).tile([c, 1, 1, 1]), groups=c, stride=2, padding=(pad,))


def mp_silu(x):
    return F.silu(x) / 0.596


def mp_sum(a, b, t=0.5):
    return a.lerp(b, t) / ((1 - t) ** 2 + t**2) ** 0.5


def mp_cat(a, b, dim=1, t=0.5):
    Na, Nb = a.shape[dim], b.shape[dim]
    C = ((Na + Nb) / ((1 - t) ** 2 + t**2)) ** 0.5
    wa, wb = C / Na**0.5 * (1 - t), C / Nb**0.5 * t
    return torch.cat([wa * a, wb * b], dim=dim)


class MPFourier(torch.nn.Module):
    def __init__(self, num_channels, bandwidth=1):
        super().__init__()
        self.register_buffer("freqs", 6.283185307179586 * torch.randn(num_channels) * bandwidth)
        self.register_buffer("phases", 6.283185307179586 * torch.rand(num_channels))

    def forward(self, x):
        y = x.to(torch.float32)
        y = y.ger(self.freqs.to(torch.float32))
        y = y + self.phases.to(torch.float32)
        y = y.cos() * 2**0.5
        return y.to(x.dtype)


class MPConv(torch.nn.Module):
    def __init__(self, in_channels, out_channels, kernel):
        super().__init__()
        self.out_channels = out_channels
        self.weight = torch.nn.Parameter(torch.randn(out_channels, in_channels, *kernel))

    def forward(self, x, gain=1):
        w = self.weight.to(torch.float32)
        if self.training:
            with torch.no_grad():
                self.weight.copy_(normalize(w))  # forced weight normalization
        w = normalize(w)  # traditional weight normalization
        w = w * (gain / w[0].numel() ** 0.5)  # magnitude-preserving scaling
        w = w.to(x.dtype)
        if w.ndim == 2:
            return x @ w.t()
        assert w.ndim == 4
        return F.conv2d(x, w, padding=(w.shape[-1] // 2,))


class Block(torch.nn.Module):
    def __init__(self, in_channels, out_channels, emb_channels, flavor="enc", resample_mode="keep", attention=False):
        super().__init__()
        self.out_channels, self.flavor, self.resample_mode = out_channels, flavor, resample_mode
        self.num_heads = out_channels // 32 if attention else 0
        self.dropout, self.res_balance, self.attn_balance, self.clip_act = 0.0, 0.3, 0.3, 256
        self.emb_gain = torch.nn.Parameter(torch.tensor(0.5))
        self.conv_res0 = MPConv(out_channels if flavor == "enc" else in_channels, out_channels, kernel=[3, 3])
        self.emb_linear = MPConv(emb_channels, out_channels, kernel=[])
        self.conv_res1 = MPConv(out_channels, out_channels, kernel=[3, 3])
        self.conv_skip = MPConv(in_channels, out_channels, kernel=[1, 1]) if in_channels != out_channels else None
        self.attn_qkv = MPConv(out_channels, out_channels * 3, kernel=[1, 1]) if self.num_heads != 0 else None
        self.attn_proj = MPConv(out_channels, out_channels, kernel=[1, 1]) if self.num_heads != 0 else None

    def forward(self, x, emb):
        # main branch
        x = resample(x, mode=self.resample_mode)
        if self.flavor == "enc":
            if self.conv_skip is not None:
                x = self.conv_skip(x)
            x = normalize(x, dim=1)  # pixel norm

        # residual branch
        y = self.conv_res0(mp_silu(x))
        c = self.emb_linear(emb, gain=self.emb_gain) + 1
        y = mp_silu(y * c.unsqueeze(2).unsqueeze(3).to(y.dtype))
        if self.training and self.dropout != 0:
            y = F.dropout(y, p=self.dropout)
        y = self.conv_res1(y)

        # connect the branches
        if self.flavor == "dec" and self.conv_skip is not None:
            x = self.conv_skip(x)
        x = mp_sum(x, y, t=self.res_balance)

        # self-attention
        if self.num_heads != 0:
            y = self.attn_qkv(x)
            y = y.reshape(y.shape[0], self.num_heads, -1, 3, y.shape[2] * y.shape[3])
            q, k, v = normalize(y, dim=2).unbind(3)
            w = torch.einsum("nhcq,nhck->nhqk", q, k / q.shape[2] ** 0.5).softmax(dim=3)
            y = torch.einsum("nhqk,nhck->nhcq", w, v)
            y = self.attn_proj(y.reshape(*x.shape))
            x = mp_sum(x, y, t=self.attn_balance)

        if self.clip_act is not None:
            x = x.clip_(-self.clip_act, self.clip_act)
        return x


class UNet(torch.nn.Module):
    def __init__(self, img_resolution, img_channels, label_dim, model_channels, channel_mult, num_blocks, attn_resolutions):
        super().__init__()
        cblock = [model_channels * x for x in channel_mult]
        cnoise, cemb = cblock[0], max(cblock)
        self.label_balance, self.concat_balance = 0.5, 0.5
        self.out_gain = torch.nn.Parameter(torch.tensor(0.8))
        self.emb_fourier = MPFourier(cnoise)
        self.emb_noise = MPConv(cnoise, cemb, kernel=[])
        self.emb_label = MPConv(label_dim, cemb, kernel=[]) if label_dim != 0 else None
        self.enc = torch.nn.ModuleDict()
        cout = img_channels + 1
        for level, channels in enumerate(cblock):
            res = img_resolution >> level
            if level == 0:
                cin, cout = cout, channels
                self.enc[f"{res}x{res}_conv"] = MPConv(cin, cout, kernel=[3, 3])
            else:
                self.enc[f"{res}x{res}_down"] = Block(cout, cout, cemb, flavor="enc", resample_mode="down")
            for idx in range(num_blocks):
                cin, cout = cout, channels
                self.enc[f"{res}x{res}_block{idx}"] = Block(cin, cout, cemb, flavor="enc", attention=(res in attn_resolutions))
        self.dec = torch.nn.ModuleDict()
        skips = [block.out_channels for block in self.enc.values()]
        for level, channels in reversed(list(enumerate(cblock))):
            res = img_resolution >> level
            if level == len(cblock) - 1:
                self.dec[f"{res}x{res}_in0"] = Block(cout, cout, cemb, flavor="dec", attention=True)
                self.dec[f"{res}x{res}_in1"] = Block(cout, cout, cemb, flavor="dec")
            else:
                self.dec[f"{res}x{res}_up"] = Block(cout, cout, cemb, flavor="dec", resample_mode="up")
            for idx in range(num_blocks + 1):
                cin, cout = cout + skips.pop(), channels
                self.dec[f"{res}x{res}_block{idx}"] = Block(cin, cout, cemb, flavor="dec", attention=(res in attn_resolutions))
        self.out_conv = MPConv(cout, img_channels, kernel=[3, 3])

    def forward(self, x, noise_labels, class_labels):
        emb = self.emb_noise(self.emb_fourier(noise_labels))
        if self.emb_label is not None:
            emb = mp_sum(emb, self.emb_label(class_labels * class_labels.shape[1] ** 0.5), t=self.label_balance)
        emb = mp_silu(emb)
        x = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
        skips = []
        for name, block in self.enc.items():
            x = block(x) if "conv" in name else block(x, emb)
            skips.append(x)
        for name, block in self.dec.items():
            if "block" in name:
                x = mp_cat(x, skips.pop(), t=self.concat_balance)
            x = block(x, emb)
        return self.out_conv(x, gain=self.out_gain)


class Model(torch.nn.Module):
    """EDM2: a magnitude-preserving U-Net under EDM preconditioning with the uncertainty-weighted denoising loss."""

    def __init__(self, img_resolution, img_channels, label_dim, model_channels, channel_mult, num_blocks, attn_resolutions):
        super().__init__()
        self.label_dim, self.sigma_data = label_dim, 0.5
        self.unet = UNet(img_resolution, img_channels, label_dim, model_channels, channel_mult, num_blocks, attn_resolutions)
        self.logvar_fourier = MPFourier(64)
        self.logvar_linear = MPConv(64, 1, kernel=[])

    def precond(self, x, sigma, class_labels):
        x = x.to(torch.float32)
        sigma = sigma.to(torch.float32).reshape(-1, 1, 1, 1)
        class_labels = class_labels.to(torch.float32).reshape(-1, self.label_dim)
        c_skip = self.sigma_data**2 / (sigma**2 + self.sigma_data**2)
        c_out = sigma * self.sigma_data / (sigma**2 + self.sigma_data**2).sqrt()
        c_in = 1 / (self.sigma_data**2 + sigma**2).sqrt()
        c_noise = sigma.flatten().log() / 4
        F_x = self.unet((c_in * x), c_noise, class_labels)
        D_x = c_skip * x + c_out * F_x.to(torch.float32)
        logvar = self.logvar_linear(self.logvar_fourier(c_noise)).reshape(-1, 1, 1, 1)
        return D_x, logvar

    def forward(self, images, rnd_normal, noise, labels):
        sigma = (rnd_normal * 1.0 - 0.4).exp()
        weight = (sigma**2 + self.sigma_data**2) / (sigma * self.sigma_data) ** 2
        denoised, logvar = self.precond(images + noise * sigma, sigma, labels)
        loss = (weight / logvar.exp()) * ((denoised - images) ** 2) + logvar
        return loss.mean(), denoised


def get_inputs():
    labels = F.one_hot(torch.tensor([3, 0]), 10)
    return [torch.randn(2, 4, 16, 16) * 0.5, torch.randn(2, 1, 1, 1), torch.randn(2, 4, 16, 16), labels]


def get_init_inputs():
    return [16, 4, 10, 64, [1, 2], 1, [8]]
