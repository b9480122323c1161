import torch
import torch.nn as nn
import torch.nn.functional as F


def build_mlp(in_size, hidden_size, out_size, lay_norm=True):
    module = nn.Sequential(
        nn.Linear(in_size, hidden_size), nn.ReLU(),
        nn.Linear(hidden_size, hidden_size), nn.ReLU(),
        nn.Linear(hidden_size, hidden_size), nn.ReLU(),
        nn.Linear(hidden_size, out_size),
    )
    if lay_norm:
        return nn.Sequential(module, nn.LayerNorm(normalized_shape=out_size))
    return module


def scatter_add(src, index, dim_size):
    out = torch.zeros(dim_size, src.size(-1), dtype=src.dtype, device=src.device)
    return out.index_add(0, index, src)


class Normalizer(nn.Module):
    def __init__(self, size, std_epsilon=1e-8):
        super().__init__()
        self.register_buffer("acc_count", torch.tensor(1000.0))
        self.register_buffer("acc_sum", torch.randn(1, size) * 10)
        self.register_buffer("acc_sum_squared", torch.rand(1, size) * 500 + 800)
        self.std_epsilon = std_epsilon

    def _mean(self):
        return self.acc_sum / self.acc_count

    def _std(self):
        std = torch.sqrt((self.acc_sum_squared / self.acc_count - self._mean() ** 2).clamp(min=0))
        return torch.maximum(std, torch.full_like(std, self.std_epsilon))

    def forward(self, x):
        return (x - self._mean()) / self._std()

    def inverse(self, x):
        return x * self._std() + self._mean()


class EdgeBlock(nn.Module):
    def __init__(self, custom_func):
        super().__init__()
        self.net = custom_func

    def forward(self, node_attr, edge_attr, senders, receivers):
        edges_to_collect = []
        edges_to_collect.append(node_attr[senders])
        edges_to_collect.append(node_attr[receivers])
        edges_to_collect.append(edge_attr)
        return self.net(torch.cat(edges_to_collect, dim=1))


class NodeBlock(nn.Module):
    def __init__(self, custom_func):
        super().__init__()
        self.net = custom_func

    def forward(self, node_attr, edge_attr, receivers):
        num_nodes = node_attr.size(0)
        agg = scatter_add(edge_attr, receivers, num_nodes)
        return self.net(torch.cat([node_attr, agg], dim=-1))


class GnBlock(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.eb_module = EdgeBlock(build_mlp(3 * hidden_size, hidden_size, hidden_size))
        self.nb_module = NodeBlock(build_mlp(2 * hidden_size, hidden_size, hidden_size))

    def forward(self, x, e, senders, receivers):
        e_new = self.eb_module(x, e, senders, receivers)
        x_new = self.nb_module(x, e_new, receivers)
        return x + x_new, e + e_new


class Model(nn.Module):
    """MeshGraphNets simulator step: encode-process-decode on a mesh, next-velocity loss on the free nodes."""

    def __init__(self, message_passing_num, node_type_size, hidden_size, spatial_dim):
        super().__init__()
        self.node_type_size = node_type_size
        node_in = spatial_dim + node_type_size
        edge_in = spatial_dim + 1
        self.nb_encoder = build_mlp(node_in, hidden_size, hidden_size)
        self.eb_encoder = build_mlp(edge_in, hidden_size, hidden_size)
        self.processer_list = nn.ModuleList([GnBlock(hidden_size) for _ in range(message_passing_num)])
        self.decoder = build_mlp(hidden_size, hidden_size, spatial_dim, lay_norm=False)
        self.node_normalizer = Normalizer(node_in)
        self.edge_normalizer = Normalizer(edge_in)
        self.output_normalizer = Normalizer(spatial_dim)

    def forward(self, pos, velocity, target_velocity, node_type, edge_index):
        senders, receivers = edge_index[0], edge_index[1]
        relative = pos[senders] - pos[receivers]
        dist = torch.norm(relative, p=2, dim=1, keepdim=True)
        edge_attr = self.edge_normalizer(torch.cat([relative, dist], dim=-1))
        one_hot = F.one_hot(node_type, self.node_type_size).to(velocity.dtype)
        x = self.node_normalizer(torch.cat([velocity, one_hot], dim=-1))
        x = self.nb_encoder(x)
        e = self.eb_encoder(edge_attr)
        for model in self.processer_list:
            x, e = model(x, e, senders, receivers)
        predicted = self.decoder(x)
        target = self.output_normalizer(target_velocity - velocity)
        mask = torch.logical_or(node_type == 0, node_type == 5)
        errors = ((predicted - target) ** 2).sum(dim=1)
        loss = torch.where(mask, errors, torch.zeros_like(errors)).sum() / mask.sum().clamp(min=1)
        next_velocity = torch.where(mask.unsqueeze(-1), velocity + self.output_normalizer.inverse(predicted), velocity)
        return loss, next_velocity


num_nodes, num_edges = 16000, 96000


def get_inputs():
    pos = torch.rand(num_nodes, 3)
    velocity = torch.randn(num_nodes, 3)
    target_velocity = velocity + 0.1 * torch.randn(num_nodes, 3)
    node_type = torch.randint(0, 9, (num_nodes,))
    edge_index = torch.randint(0, num_nodes, (2, num_edges))
    return [pos, velocity, target_velocity, node_type, edge_index]


def get_init_inputs():
    return [6, 9, 128, 3]
