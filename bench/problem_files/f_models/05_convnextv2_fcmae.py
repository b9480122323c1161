import torch
import torch.nn as nn
import torch.nn.functional as F


class LayerNorm(nn.Module):
    def __init__(self, normalized_shape, eps=1e-6, data_format="channels_last"):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(normalized_shape))
        self.bias = nn.Parameter(torch.zeros(normalized_shape))
        self.eps = eps
        self.data_format = data_format
        self.normalized_shape = (normalized_shape,)

    def forward(self, x):
        if self.data_format == "channels_last":
            return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class GRN(nn.Module):
    """Global response normalization."""

    def __init__(self, dim):
        super().__init__()
        self.gamma = nn.Parameter(torch.randn(1, 1, 1, dim) * 0.2)
        self.beta = nn.Parameter(torch.zeros(1, 1, 1, dim))

    def forward(self, x):
        Gx = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        Nx = Gx / (Gx.mean(dim=-1, keepdim=True) + 1e-6)
        return self.gamma * (x * Nx) + self.beta + x


def drop_path(x, drop_prob, training):
    if drop_prob == 0.0 or not training:
        return x
    keep_prob = 1 - drop_prob
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    return x * x.new_empty(shape).bernoulli_(keep_prob) / keep_prob


class Block(nn.Module):
    def __init__(self, dim, drop=0.0):
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, kernel_size=7, padding=3, groups=dim)
        self.norm = LayerNorm(dim, eps=1e-6)
        self.pwconv1 = nn.Linear(dim, 4 * dim)
        self.act = nn.GELU()
        self.grn = GRN(4 * dim)
        self.pwconv2 = nn.Linear(4 * dim, dim)
        self.drop = drop

    def forward(self, x, mask=None):
        input = x
        if mask is not None:
            x = x * (1.0 - mask)
        x = self.dwconv(x)
        if mask is not None:  # the binary masking that stands for the sparse convolution
            x = x * (1.0 - mask)
        x = x.permute(0, 2, 3, 1)
        x = self.norm(x)
        x = self.pwconv1(x)
        x = self.act(x)
        x = self.grn(x)
        x = self.pwconv2(x)
        x = x.permute(0, 3, 1, 2)
        return input + drop_path(x, self.drop, self.training)


class SparseConvNeXtV2(nn.Module):
    def __init__(self, in_chans, depths, dims):
        super().__init__()
        self.downsample_layers = nn.ModuleList()
        stem = nn.Sequential(
            nn.Conv2d(in_chans, dims[0], kernel_size=4, stride=4),
            LayerNorm(dims[0], eps=1e-6, data_format="channels_first"),
        )
        self.downsample_layers.append(stem)
        for i in range(len(dims) - 1):
            self.downsample_layers.append(
                nn.Sequential(
                    LayerNorm(dims[i], eps=1e-6, data_format="channels_first"),
                    nn.Conv2d(dims[i], dims[i + 1], kernel_size=2, stride=2),
                )
            )
        self.stages = nn.ModuleList([nn.ModuleList([Block(d) for _ in range(n)]) for n, d in zip(depths, dims)])

    def upsample_mask(self, mask, scale):
        p_h, p_w = mask.shape[1], mask.shape[2]
        return mask.reshape(-1, p_h, p_w).repeat_interleave(scale, dim=1).repeat_interleave(scale, dim=2)

    def forward(self, x, mask):
        num_stages = len(self.stages)
        mask_up = self.upsample_mask(mask, 2 ** (num_stages - 1)).unsqueeze(1).type_as(x)
        x = self.downsample_layers[0](x)
        x = x * (1.0 - mask_up)
        for i in range(num_stages):
            if i > 0:
                x = self.downsample_layers[i](x)
                mask_up = self.upsample_mask(mask, 2 ** (num_stages - 1 - i)).unsqueeze(1).type_as(x)
            for blk in self.stages[i]:
                x = blk(x, mask_up)
        return x


class Model(nn.Module):
    """ConvNeXt V2 with the FCMAE objective: GRN, masked convolutions, mask tokens, a convolutional decoder and normalized pixel targets."""

    def __init__(self, in_chans, depths, dims, decoder_embed_dim, norm_pix_loss):
        super().__init__()
        self.patch_size = 4 * 2 ** (len(dims) - 1)
        self.norm_pix_loss = norm_pix_loss
        self.encoder = SparseConvNeXtV2(in_chans, depths, dims)
        self.proj = nn.Conv2d(dims[-1], decoder_embed_dim, kernel_size=1)
        self.mask_token = nn.Parameter(torch.randn(1, decoder_embed_dim, 1, 1) * 0.02)
        self.decoder = nn.Sequential(Block(decoder_embed_dim), Block(decoder_embed_dim))
        self.pred = nn.Conv2d(decoder_embed_dim, self.patch_size**2 * in_chans, kernel_size=1)
        for m in self.modules():
            if isinstance(m, (nn.Conv2d, nn.Linear)):
                nn.init.trunc_normal_(m.weight, std=0.05)
                nn.init.constant_(m.bias, 0.0)

    def patchify(self, imgs):
        p = self.patch_size
        h, w = imgs.shape[2] // p, imgs.shape[3] // p
        x = imgs.reshape(shape=(imgs.shape[0], 3, h, p, w, p))
        x = torch.einsum("nchpwq->nhwpqc", x)
        return x.reshape(shape=(imgs.shape[0], h * w, p**2 * 3))

    def gen_mask(self, noise, mask_ratio):
        N, h, w = noise.shape
        L = h * w
        len_keep = int(L * (1 - mask_ratio))
        ids_shuffle = torch.argsort(noise.reshape(N, L), dim=1)
        ids_restore = torch.argsort(ids_shuffle, dim=1)
        mask = torch.ones([N, L], device=noise.device)
        mask[:, :len_keep] = 0
        return torch.gather(mask, dim=1, index=ids_restore).reshape(N, h, w)

    def forward(self, imgs, noise):
        mask = self.gen_mask(noise, 0.6)
        x = self.encoder(imgs, mask)
        x = self.proj(x)
        n, c, h, w = x.shape
        m = mask.reshape(-1, h, w).unsqueeze(1).type_as(x)
        mask_token = self.mask_token.repeat(x.shape[0], 1, x.shape[2], x.shape[3])
        x = x * (1.0 - m) + mask_token * m
        pred = self.pred(self.decoder(x))
        pred = pred.reshape(n, pred.shape[1], -1)
        pred = torch.einsum("ncl->nlc", pred)
        target = self.patchify(imgs)
        if self.norm_pix_loss:
            mean = target.mean(dim=-1, keepdim=True)
            var = target.var(dim=-1, keepdim=True)
            target = (target - mean) / (var + 1.0e-6) ** 0.5
        loss = (pred - target) ** 2
        loss = loss.mean(dim=-1)
        mask = mask.reshape(n, -1)
        loss = (loss * mask).sum() / mask.sum()
        return loss, pred, mask


def get_inputs():
    return [torch.randn(2, 3, 112, 80), torch.rand(2, 7, 5)]


def get_init_inputs():
    return [3, (2, 2, 2), (64, 96, 160), 128, True]
