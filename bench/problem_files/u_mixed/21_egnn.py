import torch
import torch.nn as nn
import torch.nn.functional as F


def unsorted_segment_sum(data, segment_ids, num_segments):
    result = data.new_full((num_segments, data.size(1)), 0)
    segment_ids = segment_ids.unsqueeze(-1).expand(-1, data.size(1))
    result.scatter_add_(0, segment_ids, data)
    return result


def unsorted_segment_mean(data, segment_ids, num_segments):
    segment_ids = segment_ids.unsqueeze(-1).expand(-1, data.size(1))
    result = data.new_full((num_segments, data.size(1)), 0)
    count = data.new_full((num_segments, data.size(1)), 0)
    result.scatter_add_(0, segment_ids, data)
    count.scatter_add_(0, segment_ids, torch.ones_like(data))
    return result / count.clamp(min=1)


class E_GCL(nn.Module):
    def __init__(self, nf, edges_in_d):
        super().__init__()
        act = nn.SiLU()
        self.edge_mlp = nn.Sequential(nn.Linear(2 * nf + 1 + edges_in_d, nf), act, nn.Linear(nf, nf), act)
        self.node_mlp = nn.Sequential(nn.Linear(2 * nf, nf), act, nn.Linear(nf, nf))
        last = nn.Linear(nf, 1, bias=False)
        nn.init.xavier_uniform_(last.weight, gain=0.1)
        self.coord_mlp = nn.Sequential(nn.Linear(nf, nf), act, last, nn.Tanh())
        self.att_mlp = nn.Sequential(nn.Linear(nf, 1), nn.Sigmoid())
        self.vel_mlp = nn.Sequential(nn.Linear(nf, nf), act, nn.Linear(nf, 1))

    def forward(self, h, edge_index, coord, vel, edge_attr):
        row, col = edge_index
        diff = coord[row] - coord[col]
        radial = torch.sum(diff ** 2, 1).unsqueeze(1)
        norm = torch.sqrt(radial + 1e-8).detach()
        diff = diff / (norm + 1)
        m = self.edge_mlp(torch.cat([h[row], h[col], radial, edge_attr], dim=1))
        m = m * self.att_mlp(m)
        trans = torch.clamp(diff * self.coord_mlp(m), min=-100, max=100)
        agg = unsorted_segment_mean(trans, row, num_segments=coord.size(0))
        vel = self.vel_mlp(h) * vel + agg
        coord = coord + vel
        aggm = unsorted_segment_sum(m, row, num_segments=h.size(0))
        h = h + self.node_mlp(torch.cat([h, aggm], dim=1))
        return h, coord, vel


class Model(nn.Module):
    """EGNN with velocities on a fully connected n-body graph per batch element."""

    def __init__(self, in_nf, nf, n_layers):
        super().__init__()
        self.emb = nn.Linear(in_nf, nf)
        self.layers = nn.ModuleList(E_GCL(nf, 1) for _ in range(n_layers))

    def forward(self, charges, loc, vel):
        B, N, _ = loc.shape
        # all ordered pairs without self loops
        row, col = torch.meshgrid(torch.arange(N, device=loc.device), torch.arange(N - 1, device=loc.device), indexing="ij")
        row, col = row.flatten(), (col + (col >= row)).flatten()
        shift = (torch.arange(B, device=loc.device) * N).repeat_interleave(row.numel())
        row, col = row.repeat(B) + shift, col.repeat(B) + shift
        q = charges.reshape(-1, 1)
        x, v = loc.reshape(-1, 3), vel.reshape(-1, 3)
        h = self.emb(torch.cat([v.norm(dim=-1, keepdim=True), q], dim=-1))
        edge_attr = q[row] * q[col]
        mean0 = loc.mean(dim=1, keepdim=True)
        x = (loc - mean0).reshape(-1, 3)
        for layer in self.layers:
            h, x, v = layer(h, (row, col), x, v, edge_attr)
        return x.view(B, N, 3) + mean0, v.view(B, N, 3), h.view(B, N, -1).mean(1)


def get_inputs():
    return [torch.randint(0, 2, (6, 7, 1)).float() * 2 - 1, torch.randn(6, 7, 3), torch.randn(6, 7, 3) * 0.5]


def get_init_inputs():
    return [2, 28, 3]
