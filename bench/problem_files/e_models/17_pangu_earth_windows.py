import torch
import torch.nn as nn
import torch.nn.functional as F


def get_pad3d(input_resolution, window_size):
    Pl, Lat, Lon = input_resolution
    win_pl, win_lat, win_lon = window_size
    pads = []
    for n, w in ((Lon, win_lon), (Lat, win_lat), (Pl, win_pl)):
        rem = n % w
        total = w - rem if rem else 0
        pads += [total // 2, total - total // 2]
    return tuple(pads)


def crop3d(x, resolution):
    _, _, Pl, Lat, Lon = x.shape
    p, a, o = Pl - resolution[0], Lat - resolution[1], Lon - resolution[2]
    return x[:, :, p // 2 : Pl - (p - p // 2), a // 2 : Lat - (a - a // 2), o // 2 : Lon - (o - o // 2)]


def window_partition(x, window_size):
    B, Pl, Lat, Lon, C = x.shape
    wp, wa, wo = window_size
    x = x.view(B, Pl // wp, wp, Lat // wa, wa, Lon // wo, wo, C)
    windows = x.permute(0, 5, 1, 3, 2, 4, 6, 7).contiguous().view(-1, (Pl // wp) * (Lat // wa), wp, wa, wo, C)
    return windows


def window_reverse(windows, window_size, Pl, Lat, Lon):
    wp, wa, wo = window_size
    B = int(windows.shape[0] / (Lon / wo))
    x = windows.view(B, Lon // wo, Pl // wp, Lat // wa, wp, wa, wo, -1)
    return x.permute(0, 2, 4, 3, 5, 1, 6, 7).contiguous().view(B, Pl, Lat, Lon, -1)


def get_shift_window_mask(input_resolution, window_size, shift_size):
    Pl, Lat, Lon = input_resolution
    wp, wa, wo = window_size
    sp, sa, so = shift_size
    img_mask = torch.zeros((1, Pl, Lat, Lon + so, 1))
    cnt = 0
    for pl in (slice(0, -wp), slice(-wp, -sp), slice(-sp, None)):
        for lat in (slice(0, -wa), slice(-wa, -sa), slice(-sa, None)):
            for lon in (slice(0, -wo), slice(-wo, -so), slice(-so, None)):
                img_mask[:, pl, lat, lon, :] = cnt
                cnt += 1
    img_mask = img_mask[:, :, :, :Lon, :]  # the longitude is periodic
    mask_windows = window_partition(img_mask, window_size)
    n_lon, n_win = mask_windows.shape[:2]
    mask_windows = mask_windows.view(n_lon, n_win, wp * wa * wo)
    attn_mask = mask_windows.unsqueeze(2) - mask_windows.unsqueeze(3)
    return attn_mask.masked_fill(attn_mask != 0, float(-100.0)).masked_fill(attn_mask == 0, float(0.0))


def get_earth_position_index(window_size):
    wp, wa, wo = window_size
    coords_zi, coords_zj = torch.arange(wp), -torch.arange(wp) * wp
    coords_hi, coords_hj = torch.arange(wa), -torch.arange(wa) * wa
    coords_w = torch.arange(wo)
    coords_1 = torch.stack(torch.meshgrid([coords_zi, coords_hi, coords_w], indexing="ij")).flatten(1)
    coords_2 = torch.stack(torch.meshgrid([coords_zj, coords_hj, coords_w], indexing="ij")).flatten(1)
    coords = coords_1[:, :, None] - coords_2[:, None, :]
    coords = coords.permute(1, 2, 0).contiguous()
    coords[:, :, 2] += wo - 1
    coords[:, :, 1] *= 2 * wo - 1
    coords[:, :, 0] *= (2 * wo - 1) * wa * wa
    return coords.sum(-1)


class EarthAttention3D(nn.Module):
    def __init__(self, dim, input_resolution, window_size, num_heads):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        wp, wa, wo = window_size
        self.type_of_windows = (input_resolution[0] // wp) * (input_resolution[1] // wa)
        self.earth_position_bias_table = nn.Parameter(torch.zeros((wp**2) * (wa**2) * (wo * 2 - 1), self.type_of_windows, num_heads))
        nn.init.trunc_normal_(self.earth_position_bias_table, std=0.02)
        self.register_buffer("earth_position_index", get_earth_position_index(window_size))
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x, mask=None):
        B_, nW_, N, C = x.shape
        qkv = self.qkv(x).reshape(B_, nW_, N, 3, self.num_heads, C // self.num_heads).permute(3, 0, 4, 1, 2, 5)
        q, k, v = qkv[0], qkv[1], qkv[2]
        q = q * self.scale
        attn = q @ k.transpose(-2, -1)
        bias = self.earth_position_bias_table[self.earth_position_index.view(-1)].view(N, N, self.type_of_windows, -1)
        bias = bias.permute(3, 2, 0, 1).contiguous()  # nH, num_pl*num_lat, N, N
        attn = attn + bias.unsqueeze(0)
        if mask is not None:
            nLon = mask.shape[0]
            attn = attn.view(B_ // nLon, nLon, self.num_heads, nW_, N, N) + mask.unsqueeze(1).unsqueeze(0)
            attn = attn.view(-1, self.num_heads, nW_, N, N)
        attn = self.softmax(attn)
        x = (attn @ v).permute(0, 2, 3, 1, 4).reshape(B_, nW_, N, C)
        return self.proj(x)


class EarthSpecificBlock(nn.Module):
    def __init__(self, dim, input_resolution, num_heads, window_size, shift_size):
        super().__init__()
        self.input_resolution, self.window_size, self.shift_size = input_resolution, window_size, shift_size
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.padding = get_pad3d(input_resolution, window_size)
        p = self.padding
        pad_resolution = (input_resolution[0] + p[4] + p[5], input_resolution[1] + p[2] + p[3], input_resolution[2] + p[0] + p[1])
        self.attn = EarthAttention3D(dim, pad_resolution, window_size, num_heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.roll = all(s > 0 for s in shift_size)
        mask = get_shift_window_mask(pad_resolution, window_size, shift_size) if self.roll else None
        self.register_buffer("attn_mask", mask)

    def forward(self, x):
        Pl, Lat, Lon = self.input_resolution
        B, L, C = x.shape
        shortcut = x
        x = x.view(B, Pl, Lat, Lon, C)
        x = F.pad(x.permute(0, 4, 1, 2, 3), self.padding).permute(0, 2, 3, 4, 1)
        _, Pl_pad, Lat_pad, Lon_pad, _ = x.shape
        sp, sa, so = self.shift_size
        if self.roll:
            shifted_x = torch.roll(x, shifts=(-sp, -sa, -so), dims=(1, 2, 3))
        else:
            shifted_x = x
        x_windows = window_partition(shifted_x, self.window_size)
        wp, wa, wo = self.window_size
        x_windows = x_windows.view(x_windows.shape[0], x_windows.shape[1], wp * wa * wo, C)
        attn_windows = self.attn(x_windows, mask=self.attn_mask)
        attn_windows = attn_windows.view(attn_windows.shape[0], attn_windows.shape[1], wp, wa, wo, C)
        x = window_reverse(attn_windows, self.window_size, Pl=Pl_pad, Lat=Lat_pad, Lon=Lon_pad)
        if self.roll:
            x = torch.roll(x, shifts=(sp, sa, so), dims=(1, 2, 3))
        x = crop3d(x.permute(0, 4, 1, 2, 3), self.input_resolution).permute(0, 2, 3, 4, 1)
        x = x.reshape(B, Pl * Lat * Lon, C)
        x = shortcut + self.norm1(x)
        return x + self.norm2(self.mlp(x))


class BasicLayer(nn.Module):
    def __init__(self, dim, input_resolution, depth, num_heads, window_size):
        super().__init__()
        half = tuple(w // 2 for w in window_size)
        self.blocks = nn.ModuleList(
            [EarthSpecificBlock(dim, input_resolution, num_heads, window_size, (0, 0, 0) if i % 2 == 0 else half) for i in range(depth)]
        )

    def forward(self, x):
        for blk in self.blocks:
            x = blk(x)
        return x


class DownSample(nn.Module):
    def __init__(self, in_dim, input_resolution, output_resolution):
        super().__init__()
        self.linear = nn.Linear(in_dim * 4, in_dim * 2, bias=False)
        self.norm = nn.LayerNorm(4 * in_dim)
        self.input_resolution, self.output_resolution = input_resolution, output_resolution
        h_pad = output_resolution[1] * 2 - input_resolution[1]
        w_pad = output_resolution[2] * 2 - input_resolution[2]
        self.pad = nn.ZeroPad3d((w_pad // 2, w_pad - w_pad // 2, h_pad // 2, h_pad - h_pad // 2, 0, 0))

    def forward(self, x):
        B, N, C = x.shape
        in_pl, in_lat, in_lon = self.input_resolution
        out_pl, out_lat, out_lon = self.output_resolution
        x = x.reshape(B, in_pl, in_lat, in_lon, C)
        x = self.pad(x.permute(0, -1, 1, 2, 3)).permute(0, 2, 3, 4, 1)
        x = x.reshape(B, in_pl, out_lat, 2, out_lon, 2, C).permute(0, 1, 2, 4, 3, 5, 6)
        x = x.reshape(B, out_pl * out_lat * out_lon, 4 * C)
        return self.linear(self.norm(x))


class UpSample(nn.Module):
    def __init__(self, in_dim, out_dim, input_resolution, output_resolution):
        super().__init__()
        self.linear1 = nn.Linear(in_dim, out_dim * 4, bias=False)
        self.linear2 = nn.Linear(out_dim, out_dim, bias=False)
        self.norm = nn.LayerNorm(out_dim)
        self.input_resolution, self.output_resolution = input_resolution, output_resolution

    def forward(self, x):
        B, N, C = x.shape
        in_pl, in_lat, in_lon = self.input_resolution
        out_pl, out_lat, out_lon = self.output_resolution
        x = self.linear1(x)
        x = x.reshape(B, in_pl, in_lat, in_lon, 2, 2, C // 2).permute(0, 1, 2, 4, 3, 5, 6)
        x = x.reshape(B, in_pl, in_lat * 2, in_lon * 2, -1)
        ph, pw = in_lat * 2 - out_lat, in_lon * 2 - out_lon
        x = x[:, :out_pl, ph // 2 : 2 * in_lat - (ph - ph // 2), pw // 2 : 2 * in_lon - (pw - pw // 2), :]
        x = x.reshape(B, out_pl * out_lat * out_lon, x.shape[-1])
        return self.linear2(self.norm(x))


class Model(nn.Module):
    """Pangu-Weather-like 3D Earth transformer: padded pressure, latitude and longitude windows, a bias per window type, periodic shifts, a U shape."""

    def __init__(self, levels, lat, lon, embed_dim, heads, window, patch):
        super().__init__()
        self.shape, self.patch = (levels, lat, lon), patch
        lead = [(-n) % p for n, p in zip((levels, lat, lon), patch)]
        self.pad3d = (lead[2] // 2, lead[2] - lead[2] // 2, lead[1] // 2, lead[1] - lead[1] // 2, lead[0] // 2, lead[0] - lead[0] // 2)
        self.patchembed3d = nn.Conv3d(5, embed_dim, kernel_size=patch, stride=patch)
        self.patchembed2d = nn.Conv2d(4 + 3, embed_dim, kernel_size=patch[1:], stride=patch[1:])
        self.register_buffer("surface_mask", torch.randn(3, lat, lon))
        r1 = ((levels + lead[0]) // patch[0] + 1, (lat + lead[1]) // patch[1], (lon + lead[2]) // patch[2])
        r2 = (r1[0], (r1[1] + 1) // 2, (r1[2] + 1) // 2)
        self.r1 = r1
        self.layer1 = BasicLayer(embed_dim, r1, 2, heads, window)
        self.downsample = DownSample(embed_dim, r1, r2)
        self.layer2 = BasicLayer(embed_dim * 2, r2, 2, heads * 2, window)
        self.upsample = UpSample(embed_dim * 2, embed_dim, r2, r1)
        self.layer4 = BasicLayer(embed_dim, r1, 2, heads, window)
        self.patchrecovery2d = nn.ConvTranspose2d(2 * embed_dim, 4, patch[1:], patch[1:])
        self.patchrecovery3d = nn.ConvTranspose3d(2 * embed_dim, 5, patch, patch)

    def forward(self, upper_air, surface):
        levels, lat, lon = self.shape
        mask = self.surface_mask.unsqueeze(0).repeat(surface.shape[0], 1, 1, 1)
        surface = torch.concat([surface, mask], dim=1)
        surface = self.patchembed2d(F.pad(surface, self.pad3d[:4]))
        upper_air = self.patchembed3d(F.pad(upper_air, self.pad3d))
        x = torch.concat([surface.unsqueeze(2), upper_air], dim=2)
        B, C, Pl, Lat, Lon = x.shape
        x = x.reshape(B, C, -1).transpose(1, 2)
        x = self.layer1(x)
        skip = x
        x = self.downsample(x)
        x = self.layer2(x)
        x = self.upsample(x)
        x = self.layer4(x)
        output = torch.concat([x, skip], dim=-1)
        output = output.transpose(1, 2).reshape(B, -1, Pl, Lat, Lon)
        output_surface = self.patchrecovery2d(output[:, :, 0, :, :])
        output_upper_air = self.patchrecovery3d(output[:, :, 1:, :, :])
        output_surface = crop3d(output_surface.unsqueeze(2), (1, lat, lon)).squeeze(2)
        return crop3d(output_upper_air, self.shape), output_surface


def get_inputs():
    return [torch.randn(2, 5, 5, 37, 72), torch.randn(2, 4, 37, 72)]


def get_init_inputs():
    return [5, 37, 72, 48, 3, (2, 5, 6), (2, 4, 4)]
