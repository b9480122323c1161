import numpy as np
import torch
from torch import nn


def icosahedron():
    phi = (1 + np.sqrt(5)) / 2
    v = []
    for c1 in (1.0, -1.0):
        for c2 in (phi, -phi):
            v += [(c1, c2, 0.0), (0.0, c1, c2), (c2, 0.0, c1)]
    v = np.array(v)
    v /= np.linalg.norm([1.0, phi])
    edge = np.min(np.linalg.norm(v[None] - v[:1], axis=-1)[0][1:])
    close = np.abs(np.linalg.norm(v[:, None] - v[None], axis=-1) - edge) < 1e-6
    faces = [(i, j, k) for i in range(12) for j in range(i + 1, 12) for k in range(j + 1, 12) if close[i, j] and close[j, k] and close[i, k]]
    return v, faces


def split(v, faces):
    v, cache, out = list(v), {}, []

    def mid(a, b):
        key = (min(a, b), max(a, b))
        if key not in cache:
            m = (v[a] + v[b]) / 2
            cache[key] = len(v)
            v.append(m / np.linalg.norm(m))
        return cache[key]

    for a, b, c in faces:
        ab, bc, ca = mid(a, b), mid(b, c), mid(c, a)
        out += [(a, ab, ca), (b, bc, ab), (c, ca, bc), (ab, bc, ca)]
    return np.array(v), out


def faces_to_edges(faces):
    pairs = set()
    for a, b, c in faces:
        pairs |= {(a, b), (b, a), (b, c), (c, b), (c, a), (a, c)}
    return sorted(pairs)


def relative_features(senders_xyz, receivers_xyz, senders, receivers):
    # positions of the sender in the local frame of the receiver, by the longitude and latitude of the receiver
    r, s = receivers_xyz[receivers], senders_xyz[senders]
    lon, lat = np.arctan2(r[:, 1], r[:, 0]), np.arcsin(np.clip(r[:, 2], -1, 1))
    cl, sl, ct, st = np.cos(-lon), np.sin(-lon), np.cos(lat), np.sin(lat)
    x, y, z = cl * s[:, 0] - sl * s[:, 1], sl * s[:, 0] + cl * s[:, 1], s[:, 2]
    x, z = ct * x + st * z, -st * x + ct * z
    rel = np.stack([x - 1.0, y, z], -1)
    dist = np.linalg.norm(rel, axis=-1, keepdims=True)
    return np.concatenate([dist, rel], -1) / dist.max()


def mlp(n_in, latent, n_out=None, norm=True):
    layers = [nn.Linear(n_in, latent), nn.SiLU(), nn.Linear(latent, n_out or latent)]
    if norm:
        layers.append(nn.LayerNorm(n_out or latent))
    return nn.Sequential(*layers)


def scatter_sum(src, index, num):
    out = torch.zeros(num, *src.shape[1:], dtype=src.dtype, device=src.device)
    return out.index_add_(0, index, src)


class InteractionNetwork(nn.Module):
    """Edge update from both ends, node update from the summed incoming edges; node features are [nodes, batch, latent]."""

    def __init__(self, latent):
        super().__init__()
        self.edge_fn = mlp(3 * latent, latent)
        self.node_fn = mlp(2 * latent, latent)

    def forward(self, sender_nodes, receiver_nodes, edges, senders, receivers):
        sent = sender_nodes.index_select(0, senders)
        received = receiver_nodes.index_select(0, receivers)
        messages = self.edge_fn(torch.cat([edges, sent, received], dim=-1))
        agg = scatter_sum(messages, receivers, receiver_nodes.shape[0])
        new_nodes = receiver_nodes + self.node_fn(torch.cat([receiver_nodes, agg], dim=-1))
        return new_nodes, edges + messages


class Model(nn.Module):
    """GraphCast-like weather model: grid to multi-level icosahedral mesh, message passing, back to the grid, two rolled-out steps with a latitude-weighted loss."""

    def __init__(self, n_lat, n_lon, n_vars, n_forcings, latent, steps, splits):
        super().__init__()
        self.n_lat, self.n_lon, self.n_vars = n_lat, n_lon, n_vars
        lat = np.linspace(-90, 90, n_lat)
        lon = np.linspace(0, 360, n_lon, endpoint=False)
        la, lo = [a.reshape(-1) for a in np.meshgrid(np.deg2rad(lat), np.deg2rad(lon), indexing="ij")]
        grid = np.stack([np.cos(la) * np.cos(lo), np.cos(la) * np.sin(lo), np.sin(la)], -1)
        v, f = icosahedron()
        edges = set(faces_to_edges(f))
        for _ in range(splits):
            v, f = split(v, f)
            edges |= set(faces_to_edges(f))
        mesh_edges = np.array(sorted(edges))
        finest = np.array(faces_to_edges(f))
        radius = 0.6 * np.linalg.norm(v[finest[:, 0]] - v[finest[:, 1]], axis=-1).max()
        d = np.linalg.norm(grid[:, None] - v[None], axis=-1)
        g2m_s, g2m_r = np.nonzero(d < radius)
        centres = np.stack([v[list(t)].mean(0) for t in f])
        near = np.linalg.norm(grid[:, None] - centres[None], axis=-1).argmin(1)
        m2g_s = np.array([f[i] for i in near]).reshape(-1)
        m2g_r = np.repeat(np.arange(len(grid)), 3)
        self.num_mesh, self.num_grid = len(v), len(grid)

        def buf(name, arr, dtype):
            self.register_buffer(name, torch.as_tensor(np.ascontiguousarray(arr), dtype=dtype), persistent=False)

        buf("g2m_senders", g2m_s, torch.long), buf("g2m_receivers", g2m_r, torch.long)
        buf("m_senders", mesh_edges[:, 0], torch.long), buf("m_receivers", mesh_edges[:, 1], torch.long)
        buf("m2g_senders", m2g_s, torch.long), buf("m2g_receivers", m2g_r, torch.long)
        buf("g2m_feat", relative_features(grid, v, g2m_s, g2m_r), torch.float32)
        buf("m_feat", relative_features(v, v, mesh_edges[:, 0], mesh_edges[:, 1]), torch.float32)
        buf("m2g_feat", relative_features(v, grid, m2g_s, m2g_r), torch.float32)
        mlat, mlon = np.arcsin(np.clip(v[:, 2], -1, 1)), np.arctan2(v[:, 1], v[:, 0])
        buf("mesh_nodes", np.stack([np.cos(mlat), np.sin(mlon), np.cos(mlon)], -1), torch.float32)
        buf("grid_nodes", np.stack([np.cos(la), np.sin(lo), np.cos(lo)], -1), torch.float32)
        w = np.cos(np.deg2rad(lat)).clip(1e-2)
        buf("lat_weights", w / w.mean(), torch.float32)
        buf("var_weights", 1.0 / (1.0 + np.arange(n_vars)), torch.float32)
        buf("diffs_stddev", 0.2 + 0.1 * np.arange(n_vars), torch.float32)

        self.embed_grid = mlp(2 * n_vars + n_forcings + 3, latent)
        self.embed_mesh = mlp(3, latent)
        self.embed_g2m, self.embed_m, self.embed_m2g = mlp(4, latent), mlp(4, latent), mlp(4, latent)
        self.g2m = InteractionNetwork(latent)
        self.grid_self = mlp(latent, latent)
        self.processor = nn.ModuleList([InteractionNetwork(latent) for _ in range(steps)])
        self.m2g = InteractionNetwork(latent)
        self.decoder = mlp(latent, latent, n_vars, norm=False)

    def step(self, prev, cur, forcing):
        # all inputs [B, lat, lon, channels]; the graph axis comes first inside
        B = cur.shape[0]
        x = torch.cat([prev, cur, forcing], dim=-1).reshape(B, self.num_grid, -1).transpose(0, 1)
        x = torch.cat([x, self.grid_nodes[:, None].expand(-1, B, -1)], dim=-1)
        grid = self.embed_grid(x)
        mesh = self.embed_mesh(self.mesh_nodes)[:, None].expand(-1, B, -1)
        e_g2m = self.embed_g2m(self.g2m_feat)[:, None].expand(-1, B, -1)
        e_m = self.embed_m(self.m_feat)[:, None].expand(-1, B, -1)
        e_m2g = self.embed_m2g(self.m2g_feat)[:, None].expand(-1, B, -1)
        mesh, _ = self.g2m(grid, mesh, e_g2m, self.g2m_senders, self.g2m_receivers)
        grid = grid + self.grid_self(grid)
        for net in self.processor:
            mesh, e_m = net(mesh, mesh, e_m, self.m_senders, self.m_receivers)
        grid, _ = self.m2g(mesh, grid, e_m2g, self.m2g_senders, self.m2g_receivers)
        out = self.decoder(grid).transpose(0, 1).reshape(B, self.n_lat, self.n_lon, self.n_vars)
        return cur + out * self.diffs_stddev

    def forward(self, inputs, targets, forcings):
        prev, cur = inputs[:, 0], inputs[:, 1]
        losses, preds = [], []
        for t in range(targets.shape[1]):
            nxt = self.step(prev, cur, forcings[:, t])
            err = ((nxt - targets[:, t]) / self.diffs_stddev) ** 2
            err = err * self.lat_weights[None, :, None, None]
            per_var = err.mean(dim=(1, 2))
            losses.append((per_var * self.var_weights).sum(-1) / self.var_weights.sum())
            preds.append(nxt)
            prev, cur = cur, nxt
        loss = torch.stack(losses, dim=1).mean()
        return loss, torch.stack(preds, dim=1)


def get_inputs():
    B, H, W, V, F = 2, 13, 20, 7, 3
    state = torch.randn(B, 1, H, W, V)
    inputs = state + 0.2 * torch.randn(B, 2, H, W, V)
    targets = state + 0.3 * torch.randn(B, 2, H, W, V)
    return [inputs, targets, torch.rand(B, 2, H, W, F)]


def get_init_inputs():
    return [13, 20, 7, 3, 64, 3, 2]
