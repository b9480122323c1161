import torch
from torch import nn
import torch.nn.functional as F


def center_trim(tensor, reference):
    ref_size = reference.size(-1) if isinstance(reference, torch.Tensor) else reference
    delta = tensor.size(-1) - ref_size
    if delta < 0:
        raise ValueError(f"tensor must be larger than reference. Delta is {delta}.")
    if delta:
        tensor = tensor[..., delta // 2 : -(delta - delta // 2)]
    return tensor


def unfold(a, kernel_size, stride):
    *shape, length = a.shape
    n_frames = -(-length // stride)
    tgt_length = (n_frames - 1) * stride + kernel_size
    a = F.pad(a, (0, tgt_length - length)).contiguous()
    strides = list(a.stride())
    assert strides[-1] == 1, "data should be contiguous"
    strides = strides[:-1] + [stride, 1]
    return a.as_strided([*shape, n_frames, kernel_size], strides)


class BLSTM(nn.Module):
    def __init__(self, dim, layers=1, max_steps=None, skip=False):
        super().__init__()
        self.max_steps, self.skip = max_steps, skip
        self.lstm = nn.LSTM(bidirectional=True, num_layers=layers, hidden_size=dim, input_size=dim)
        self.linear = nn.Linear(2 * dim, dim)

    def forward(self, x):
        B, C, T = x.shape
        y = x
        framed = False
        if self.max_steps is not None and T > self.max_steps:
            width = self.max_steps
            stride = width // 2
            frames = unfold(x, width, stride)
            nframes = frames.shape[2]
            framed = True
            x = frames.permute(0, 2, 1, 3).reshape(-1, C, width)
        x = x.permute(2, 0, 1)
        x = self.lstm(x)[0]
        x = self.linear(x)
        x = x.permute(1, 2, 0)
        if framed:
            out = []
            frames = x.reshape(B, -1, C, width)
            limit = stride // 2
            for k in range(nframes):
                if k == 0:
                    out.append(frames[:, k, :, :-limit])
                elif k == nframes - 1:
                    out.append(frames[:, k, :, limit:])
                else:
                    out.append(frames[:, k, :, limit:-limit])
            x = torch.cat(out, -1)[..., :T]
        if self.skip:
            x = x + y
        return x


class LocalState(nn.Module):
    """Local attention with a learned decay over the distance in time."""

    def __init__(self, channels, heads=4, nfreqs=0, ndecay=4):
        super().__init__()
        self.heads, self.nfreqs, self.ndecay = heads, nfreqs, ndecay
        self.content, self.query = nn.Conv1d(channels, channels, 1), nn.Conv1d(channels, channels, 1)
        self.key = nn.Conv1d(channels, channels, 1)
        if nfreqs:
            self.query_freqs = nn.Conv1d(channels, heads * nfreqs, 1)
        if ndecay:
            self.query_decay = nn.Conv1d(channels, heads * ndecay, 1)
            self.query_decay.weight.data *= 0.1
            self.query_decay.bias.data[:] = -2
        self.proj = nn.Conv1d(channels + heads * nfreqs, channels, 1)

    def forward(self, x):
        B, C, T = x.shape
        heads = self.heads
        indexes = torch.arange(T, device=x.device, dtype=x.dtype)
        delta = indexes[:, None] - indexes[None, :]
        queries = self.query(x).view(B, heads, -1, T)
        keys = self.key(x).view(B, heads, -1, T)
        # t are keys, s are queries
        dots = torch.einsum("bhct,bhcs->bhts", keys, queries)
        dots /= keys.shape[2] ** 0.5
        if self.nfreqs:
            periods = torch.arange(1, self.nfreqs + 1, device=x.device, dtype=x.dtype)
            freq_kernel = torch.cos(2 * 3.141592653589793 * delta / periods.view(-1, 1, 1))
            freq_q = self.query_freqs(x).view(B, heads, -1, T) / self.nfreqs**0.5
            dots += torch.einsum("fts,bhfs->bhts", freq_kernel, freq_q)
        if self.ndecay:
            decays = torch.arange(1, self.ndecay + 1, device=x.device, dtype=x.dtype)
            decay_q = self.query_decay(x).view(B, heads, -1, T)
            decay_q = torch.sigmoid(decay_q) / 2
            decay_kernel = -decays.view(-1, 1, 1) * delta.abs() / self.ndecay**0.5
            dots += torch.einsum("fts,bhfs->bhts", decay_kernel, decay_q)
        # kill self reference
        dots.masked_fill_(torch.eye(T, device=dots.device, dtype=torch.bool), -100)
        weights = torch.softmax(dots, dim=2)
        content = self.content(x).view(B, heads, -1, T)
        result = torch.einsum("bhts,bhct->bhcs", weights, content)
        if self.nfreqs:
            time_sig = torch.einsum("bhts,fts->bhfs", weights, freq_kernel)
            result = torch.cat([result, time_sig], 2)
        result = result.reshape(B, -1, T)
        return x + self.proj(result)


class LayerScale(nn.Module):
    def __init__(self, channels, init=0.2):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(channels, requires_grad=True))
        self.scale.data[:] = init

    def forward(self, x):
        return self.scale[:, None] * x


class DConv(nn.Module):
    def __init__(self, channels, compress=4, depth=2, attn=False, lstm=False, kernel=3):
        super().__init__()
        hidden = int(channels / compress)
        self.layers = nn.ModuleList([])
        for d in range(depth):
            dilation = 2**d
            padding = dilation * (kernel // 2)
            mods = [
                nn.Conv1d(channels, hidden, kernel, dilation=dilation, padding=padding),
                nn.GroupNorm(1, hidden),
                nn.GELU(),
                nn.Conv1d(hidden, 2 * channels, 1),
                nn.GroupNorm(1, 2 * channels),
                nn.GLU(1),
                LayerScale(channels),
            ]
            if attn:
                mods.insert(3, LocalState(hidden, heads=2, nfreqs=2, ndecay=4))
            if lstm:
                mods.insert(3, BLSTM(hidden, layers=2, max_steps=24, skip=True))
            self.layers.append(nn.Sequential(*mods))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def rescale_module(module, reference):
    for sub in module.modules():
        if isinstance(sub, (nn.Conv1d, nn.ConvTranspose1d)):
            scale = (sub.weight.std().detach() / reference) ** 0.5
            sub.weight.data /= scale
            sub.bias.data /= scale


class Model(nn.Module):
    """Demucs v3 waveform separator: strided encoder, residual branches with LSTMs over frames and decaying attention, trimmed skips."""

    def __init__(self, sources, audio_channels, channels, growth, depth, kernel_size, stride, lstm_from, norm_starts):
        super().__init__()
        self.sources, self.audio_channels = sources, audio_channels
        self.depth, self.kernel_size, self.stride = depth, kernel_size, stride
        self.encoder, self.decoder = nn.ModuleList(), nn.ModuleList()
        in_channels = audio_channels
        for index in range(depth):
            norm_fn = (lambda d: nn.GroupNorm(4, d)) if index >= norm_starts else (lambda d: nn.Identity())
            deep = index >= lstm_from
            encode = [nn.Conv1d(in_channels, channels, kernel_size, stride), norm_fn(channels), nn.GELU()]
            encode += [DConv(channels, attn=deep, lstm=deep)]
            encode += [nn.Conv1d(channels, 2 * channels, 1), norm_fn(2 * channels), nn.GLU(dim=1)]
            self.encoder.append(nn.Sequential(*encode))
            out_channels = in_channels if index > 0 else sources * audio_channels
            decode = [nn.Conv1d(channels, 2 * channels, 3, padding=1), norm_fn(2 * channels), nn.GLU(dim=1)]
            decode += [nn.ConvTranspose1d(channels, out_channels, kernel_size, stride)]
            if index > 0:
                decode += [norm_fn(out_channels), nn.GELU()]
            self.decoder.insert(0, nn.Sequential(*decode))
            in_channels = channels
            channels = int(growth * channels)
        rescale_module(self, reference=0.2)

    def valid_length(self, length):
        for _ in range(self.depth):
            length = -(-(length - self.kernel_size) // self.stride) + 1
            length = max(1, length)
        for _ in range(self.depth):
            length = (length - 1) * self.stride + self.kernel_size
        return int(length)

    def forward(self, mix):
        x = mix
        length = x.shape[-1]
        mono = mix.mean(dim=1, keepdim=True)
        mean = mono.mean(dim=-1, keepdim=True)
        std = mono.std(dim=-1, keepdim=True)
        x = (x - mean) / (1e-5 + std)
        delta = self.valid_length(length) - length
        x = F.pad(x, (delta // 2, delta - delta // 2))
        saved = []
        for encode in self.encoder:
            x = encode(x)
            saved.append(x)
        for decode in self.decoder:
            skip = saved.pop(-1)
            skip = center_trim(skip, x)
            x = decode(x + skip)
        x = x * std + mean
        x = center_trim(x, length)
        return x.view(x.size(0), self.sources, self.audio_channels, x.size(-1))


def get_inputs():
    t = torch.arange(4999) / 4999
    wave = torch.sin(400 * t) * 0.3 + torch.sin(1310 * t) * 0.1
    return [wave + 0.1 * torch.randn(2, 2, 4999)]


def get_init_inputs():
    return [3, 2, 24, 2, 4, 8, 4, 2, 2]
