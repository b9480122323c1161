import torch
from torch import nn


def vector_to_skewtensor(vector):
    batch_size = vector.size(0)
    zero = torch.zeros(batch_size, device=vector.device, dtype=vector.dtype)
    tensor = torch.stack(
        (
            zero, -vector[:, 2], vector[:, 1],
            vector[:, 2], zero, -vector[:, 0],
            -vector[:, 1], vector[:, 0], zero,
        ),
        dim=1,
    )  # fmt: skip
    tensor = tensor.view(-1, 3, 3)
    return tensor.squeeze(0)


def vector_to_symtensor(vector):
    tensor = torch.matmul(vector.unsqueeze(-1), vector.unsqueeze(-2))
    I = (tensor.diagonal(offset=0, dim1=-1, dim2=-2)).mean(-1)[..., None, None] * torch.eye(
        3, 3, device=tensor.device, dtype=tensor.dtype
    )
    return 0.5 * (tensor + tensor.transpose(-2, -1)) - I


def decompose_tensor(tensor):
    I = (tensor.diagonal(offset=0, dim1=-1, dim2=-2)).mean(-1)[..., None, None] * torch.eye(
        3, 3, device=tensor.device, dtype=tensor.dtype
    )
    A = 0.5 * (tensor - tensor.transpose(-2, -1))
    S = 0.5 * (tensor + tensor.transpose(-2, -1)) - I
    return I, A, S


def tensor_norm(tensor):
    return (tensor**2).sum((-2, -1))


def new_radial_tensor(I, A, S, f_I, f_A, f_S):
    return f_I[..., None, None] * I, f_A[..., None, None] * A, f_S[..., None, None] * S


def apply_linear(linear, T):
    return linear(T.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def tensor_message_passing(edge_index, factor, tensor, natoms):
    msg = factor * tensor.index_select(0, edge_index[1])
    shape = (natoms, tensor.shape[1], tensor.shape[2], tensor.shape[3])
    tensor_m = torch.zeros(*shape, device=tensor.device, dtype=tensor.dtype)
    return tensor_m.index_add(0, edge_index[0], msg)


class CosineCutoff(nn.Module):
    def __init__(self, cutoff_lower, cutoff_upper):
        super().__init__()
        self.cutoff_lower, self.cutoff_upper = cutoff_lower, cutoff_upper

    def forward(self, distances):
        cutoffs = 0.5 * (torch.cos(distances * 3.141592653589793 / self.cutoff_upper) + 1.0)
        return cutoffs * (distances < self.cutoff_upper).to(distances.dtype)


class ExpNormalSmearing(nn.Module):
    def __init__(self, cutoff_lower, cutoff_upper, num_rbf):
        super().__init__()
        self.cutoff_fn = CosineCutoff(0, cutoff_upper)
        self.cutoff_lower = cutoff_lower
        self.alpha = 5.0 / (cutoff_upper - cutoff_lower)
        start_value = torch.exp(torch.scalar_tensor(-cutoff_upper + cutoff_lower))
        self.register_buffer("means", torch.linspace(float(start_value), 1, num_rbf))
        betas = torch.tensor([(2 / num_rbf * (1 - float(start_value))) ** -2] * num_rbf)
        self.betas = nn.Parameter(betas)

    def forward(self, dist):
        dist = dist.unsqueeze(-1)
        return self.cutoff_fn(dist) * torch.exp(
            -self.betas * (torch.exp(self.alpha * (-dist + self.cutoff_lower)) - self.means) ** 2
        )


class TensorEmbedding(nn.Module):
    def __init__(self, hidden, num_rbf, max_z, cutoff):
        super().__init__()
        self.hidden_channels = hidden
        self.distance_proj1, self.distance_proj2 = nn.Linear(num_rbf, hidden), nn.Linear(num_rbf, hidden)
        self.distance_proj3 = nn.Linear(num_rbf, hidden)
        self.cutoff = CosineCutoff(0.0, cutoff)
        self.emb, self.emb2 = nn.Embedding(max_z, hidden), nn.Linear(2 * hidden, hidden)
        self.act = nn.SiLU()
        self.linears_tensor = nn.ModuleList([nn.Linear(hidden, hidden, bias=False) for _ in range(3)])
        self.linears_scalar = nn.ModuleList([nn.Linear(hidden, 2 * hidden), nn.Linear(2 * hidden, 3 * hidden)])
        self.init_norm = nn.LayerNorm(hidden)

    def forward(self, z, edge_index, edge_weight, edge_vec_norm, edge_attr):
        Z = self.emb(z)
        vector_Z = Z.index_select(0, edge_index.t().reshape(-1)).view(-1, self.hidden_channels * 2)
        Zij = self.emb2(vector_Z)[..., None, None]
        C = self.cutoff(edge_weight).reshape(-1, 1, 1, 1) * Zij
        eye = torch.eye(3, 3, device=edge_vec_norm.device, dtype=edge_vec_norm.dtype)[None, None, ...]
        Iij = self.distance_proj1(edge_attr)[..., None, None] * C * eye
        Aij = self.distance_proj2(edge_attr)[..., None, None] * C * vector_to_skewtensor(edge_vec_norm)[..., None, :, :]
        Sij = self.distance_proj3(edge_attr)[..., None, None] * C * vector_to_symtensor(edge_vec_norm)[..., None, :, :]
        source = torch.zeros(z.shape[0], self.hidden_channels, 3, 3, device=z.device, dtype=Iij.dtype)
        I = source.index_add(dim=0, index=edge_index[0], source=Iij)
        A = source.index_add(dim=0, index=edge_index[0], source=Aij)
        S = source.index_add(dim=0, index=edge_index[0], source=Sij)
        norm = self.init_norm(tensor_norm(I + A + S))
        for linear_scalar in self.linears_scalar:
            norm = self.act(linear_scalar(norm))
        norm = norm.reshape(-1, self.hidden_channels, 3)
        I, A, S = [apply_linear(lin, T) for lin, T in zip(self.linears_tensor, (I, A, S))]
        I, A, S = new_radial_tensor(I, A, S, norm[..., 0], norm[..., 1], norm[..., 2])
        return I + A + S


class Interaction(nn.Module):
    def __init__(self, num_rbf, hidden, cutoff, equivariance_invariance_group):
        super().__init__()
        self.hidden_channels, self.group = hidden, equivariance_invariance_group
        self.cutoff, self.act = CosineCutoff(0.0, cutoff), nn.SiLU()
        self.linears_scalar = nn.ModuleList(
            [nn.Linear(num_rbf, hidden), nn.Linear(hidden, 2 * hidden), nn.Linear(2 * hidden, 3 * hidden)]
        )
        self.linears_tensor = nn.ModuleList([nn.Linear(hidden, hidden, bias=False) for _ in range(6)])

    def forward(self, X, edge_index, edge_weight, edge_attr):
        C = self.cutoff(edge_weight)
        for linear_scalar in self.linears_scalar:
            edge_attr = self.act(linear_scalar(edge_attr))
        edge_attr = (edge_attr * C.view(-1, 1)).reshape(edge_attr.shape[0], self.hidden_channels, 3)
        X = X / (tensor_norm(X) + 1)[..., None, None]
        I, A, S = [apply_linear(lin, T) for lin, T in zip(self.linears_tensor[:3], decompose_tensor(X))]
        Y = I + A + S
        Im = tensor_message_passing(edge_index, edge_attr[..., 0, None, None], I, X.shape[0])
        Am = tensor_message_passing(edge_index, edge_attr[..., 1, None, None], A, X.shape[0])
        Sm = tensor_message_passing(edge_index, edge_attr[..., 2, None, None], S, X.shape[0])
        msg = Im + Am + Sm
        if self.group == "O(3)":
            A = torch.matmul(msg, Y)
            B = torch.matmul(Y, msg)
            I, A, S = decompose_tensor(A + B)
        else:
            I, A, S = decompose_tensor(2 * torch.matmul(Y, msg))
        normp1 = (tensor_norm(I + A + S) + 1)[..., None, None]
        I, A, S = I / normp1, A / normp1, S / normp1
        I, A, S = [apply_linear(lin, T) for lin, T in zip(self.linears_tensor[3:], (I, A, S))]
        dX = I + A + S
        return X + dX + torch.matrix_power(dX, 2)


class Model(nn.Module):
    """TensorNet potential (TorchMD-Net): Cartesian rank-2 features, radial expansion, tensor messages, energies summed per molecule."""

    def __init__(self, hidden, num_layers, num_rbf, cutoff, max_z, n_mols, group):
        super().__init__()
        self.n_mols = n_mols
        self.distance_expansion = ExpNormalSmearing(0.0, cutoff, num_rbf)
        self.tensor_embedding = TensorEmbedding(hidden, num_rbf, max_z, cutoff)
        self.layers = nn.ModuleList([Interaction(num_rbf, hidden, cutoff, group) for _ in range(num_layers)])
        self.out_norm, self.linear, self.act = nn.LayerNorm(3 * hidden), nn.Linear(3 * hidden, hidden), nn.SiLU()
        self.output_network = nn.Sequential(nn.Linear(hidden, hidden // 2), nn.SiLU(), nn.Linear(hidden // 2, 1))
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.xavier_uniform_(m.weight, gain=1.7)
        self.register_buffer("atomref", torch.randn(max_z, 1))
        self.register_buffer("mean", torch.scalar_tensor(-1.3))
        self.register_buffer("std", torch.scalar_tensor(2.1))

    def forward(self, z, pos, batch, edge_index):
        edge_vec = pos[edge_index[0]] - pos[edge_index[1]]
        mask = edge_index[0] == edge_index[1]
        # the self loops' lengths are kept away from the norm's singular point
        edge_weight = torch.norm(edge_vec.masked_fill(mask.unsqueeze(1), 1.0), dim=-1).masked_fill(mask, 0.0)
        edge_attr = self.distance_expansion(edge_weight)
        edge_vec = edge_vec / edge_weight.masked_fill(mask, 1).unsqueeze(1)
        X = self.tensor_embedding(z, edge_index, edge_weight, edge_vec, edge_attr)
        for layer in self.layers:
            X = layer(X, edge_index, edge_weight, edge_attr)
        I, A, S = decompose_tensor(X)
        x = torch.cat((tensor_norm(I), tensor_norm(A), tensor_norm(S)), dim=-1)
        x = self.act(self.linear(self.out_norm(x)))
        x = self.output_network(x)
        x = x * self.std
        x = x + self.atomref[z]
        energy = torch.zeros(self.n_mols, 1, dtype=x.dtype, device=x.device).index_add(0, batch, x)
        return energy + self.mean, X


def get_inputs():
    grid = torch.stack(torch.meshgrid(torch.arange(3), torch.arange(3), torch.arange(2), indexing="ij"), -1).view(-1, 3)
    grid = torch.cat([grid, grid[:13] + 100])
    batch = torch.tensor([0] * 18 + [1] * 13)
    near = (grid[:, None] - grid[None]).pow(2).sum(-1) <= 3
    edge_index = near.nonzero().t().contiguous()
    pos = grid.float() * 1.5 + 0.2 * torch.randn(31, 3)
    return [torch.randint(1, 12, (31,)), pos, batch, edge_index]


def get_init_inputs():
    return [48, 2, 32, 4.5, 20, 2, "O(3)"]
