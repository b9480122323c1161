import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def scatter_add(x, idx_i, dim_size, dim=0):
    shape = list(x.shape)
    shape[dim] = dim_size
    tmp = torch.zeros(shape, dtype=x.dtype, device=x.device)
    return tmp.index_add(dim, idx_i, x)


def gaussian_rbf(inputs, offsets, widths):
    coeff = -0.5 / torch.pow(widths, 2)
    diff = inputs[..., None] - offsets
    return torch.exp(coeff * torch.pow(diff, 2))


class GaussianRBF(nn.Module):
    def __init__(self, n_rbf, cutoff, start=0.0):
        super().__init__()
        offset = torch.linspace(start, cutoff, n_rbf)
        widths = torch.abs(offset[1] - offset[0]) * torch.ones_like(offset)
        self.register_buffer("widths", widths)
        self.register_buffer("offsets", offset)

    def forward(self, inputs):
        return gaussian_rbf(inputs, self.offsets, self.widths)


class CosineCutoff(nn.Module):
    def __init__(self, cutoff):
        super().__init__()
        self.register_buffer("cutoff", torch.FloatTensor([cutoff]))

    def forward(self, input):
        input_cut = 0.5 * (torch.cos(input * math.pi / self.cutoff) + 1.0)
        input_cut *= (input < self.cutoff).float()
        return input_cut


class PaiNNInteraction(nn.Module):
    def __init__(self, n_atom_basis):
        super().__init__()
        self.n_atom_basis = n_atom_basis
        self.interatomic_context_net = nn.Sequential(
            nn.Linear(n_atom_basis, n_atom_basis), nn.SiLU(), nn.Linear(n_atom_basis, 3 * n_atom_basis)
        )

    def forward(self, q, mu, Wij, dir_ij, idx_i, idx_j, n_atoms):
        # inter-atomic
        x = self.interatomic_context_net(q)
        xj = x[idx_j]
        muj = mu[idx_j]
        x = Wij * xj
        dq, dmuR, dmumu = torch.split(x, self.n_atom_basis, dim=-1)
        dq = scatter_add(dq, idx_i, dim_size=n_atoms)
        dmu = dmuR * dir_ij[..., None] + dmumu * muj
        dmu = scatter_add(dmu, idx_i, dim_size=n_atoms)
        q = q + dq
        mu = mu + dmu
        return q, mu


class PaiNNMixing(nn.Module):
    def __init__(self, n_atom_basis, epsilon=1e-8):
        super().__init__()
        self.n_atom_basis = n_atom_basis
        self.intraatomic_context_net = nn.Sequential(
            nn.Linear(2 * n_atom_basis, n_atom_basis), nn.SiLU(), nn.Linear(n_atom_basis, 3 * n_atom_basis)
        )
        self.mu_channel_mix = nn.Linear(n_atom_basis, 2 * n_atom_basis, bias=False)
        self.epsilon = epsilon

    def forward(self, q, mu):
        # intra-atomic
        mu_mix = self.mu_channel_mix(mu)
        mu_V, mu_W = torch.split(mu_mix, self.n_atom_basis, dim=-1)
        mu_Vn = torch.sqrt(torch.sum(mu_V**2, dim=-2, keepdim=True) + self.epsilon)
        ctx = torch.cat([q, mu_Vn], dim=-1)
        x = self.intraatomic_context_net(ctx)
        dq_intra, dmu_intra, dqmu_intra = torch.split(x, self.n_atom_basis, dim=-1)
        dmu_intra = dmu_intra * mu_W
        dqmu_intra = dqmu_intra * torch.sum(mu_V * mu_W, dim=1, keepdim=True)
        q = q + dq_intra + dqmu_intra
        mu = mu + dmu_intra
        return q, mu


class GatedEquivariantBlock(nn.Module):
    def __init__(self, n_sin, n_vin, n_sout, n_vout, n_hidden, sactivation=None):
        super().__init__()
        self.n_sout, self.n_vout = n_sout, n_vout
        self.mix_vectors = nn.Linear(n_vin, 2 * n_vout, bias=False)
        self.scalar_net = nn.Sequential(nn.Linear(n_sin + n_vout, n_hidden), nn.SiLU(), nn.Linear(n_hidden, n_sout + n_vout))
        self.sactivation = sactivation

    def forward(self, inputs):
        scalars, vectors = inputs
        vmix = self.mix_vectors(vectors)
        vectors_V, vectors_W = torch.split(vmix, self.n_vout, dim=-1)
        vectors_Vn = torch.sqrt(torch.sum(vectors_V**2, dim=-2) + 1e-8)
        ctx = torch.cat([scalars, vectors_Vn], dim=-1)
        x = self.scalar_net(ctx)
        s_out, x = torch.split(x, [self.n_sout, self.n_vout], dim=-1)
        v_out = x.unsqueeze(-2) * vectors_W
        if self.sactivation:
            s_out = self.sactivation(s_out)
        return s_out, v_out


class Model(nn.Module):
    """PaiNN equivariant message passing on padded-free molecules: scalar and vector features, energy, dipole, polarisability and direct forces, with a loss."""

    def __init__(self, n_atom_basis, n_interactions, n_rbf, cutoff, max_z):
        super().__init__()
        self.n_atom_basis, self.n_interactions = n_atom_basis, n_interactions
        self.radial_basis = GaussianRBF(n_rbf, cutoff)
        self.cutoff_fn = CosineCutoff(cutoff)
        self.embedding = nn.Embedding(max_z, n_atom_basis, padding_idx=0)
        self.filter_net = nn.Linear(n_rbf, n_interactions * n_atom_basis * 3)
        self.interactions = nn.ModuleList([PaiNNInteraction(n_atom_basis) for _ in range(n_interactions)])
        self.mixing = nn.ModuleList([PaiNNMixing(n_atom_basis) for _ in range(n_interactions)])
        half = n_atom_basis // 2
        self.outnet_energy = nn.Sequential(nn.Linear(n_atom_basis, half), nn.SiLU(), nn.Linear(half, 1))
        self.outnet_tensor = nn.ModuleList(
            [
                GatedEquivariantBlock(n_atom_basis, n_atom_basis, half, half, n_atom_basis, sactivation=F.silu),
                GatedEquivariantBlock(half, half, 1, 1, half),
            ]
        )
        self.outnet_force = GatedEquivariantBlock(n_atom_basis, n_atom_basis, 1, 1, half)
        self.register_buffer("atomref", torch.linspace(-1.0, 1.0, max_z).unsqueeze(-1))

    def representation(self, Z, r_ij, idx_i, idx_j):
        n_atoms = Z.shape[0]
        d_ij = torch.norm(r_ij, dim=1, keepdim=True)
        dir_ij = r_ij / d_ij
        phi_ij = self.radial_basis(d_ij)
        fcut = self.cutoff_fn(d_ij)
        filters = self.filter_net(phi_ij) * fcut[..., None]
        filter_list = torch.split(filters, 3 * self.n_atom_basis, dim=-1)
        q = self.embedding(Z)[:, None]
        qs = q.shape
        mu = torch.zeros((qs[0], 3, qs[2]), device=q.device, dtype=q.dtype)
        for i, (interaction, mixing) in enumerate(zip(self.interactions, self.mixing)):
            q, mu = interaction(q, mu, filter_list[i], dir_ij, idx_i, idx_j, n_atoms)
            q, mu = mixing(q, mu)
        return q.squeeze(1), mu

    def forward(self, Z, R, idx_i, idx_j, idx_m, n_atoms_per, energy, forces, dipole):
        n_mol = n_atoms_per.shape[0]
        r_ij = R[idx_j] - R[idx_i]
        q, mu = self.representation(Z, r_ij, idx_i, idx_j)
        y = self.outnet_energy(q) + self.atomref[Z]
        E = scatter_add(y, idx_m, dim_size=n_mol).squeeze(-1)
        # centre of the molecule, then the dipole and the polarisability as in the tensor read-outs
        centre = scatter_add(R, idx_m, dim_size=n_mol) / n_atoms_per[:, None]
        Rc = R - centre[idx_m]
        s, v = q, mu
        for layer in self.outnet_tensor:
            s, v = layer((s, v))
        v = v.squeeze(-1)
        charges = s - (scatter_add(s, idx_m, dim_size=n_mol) / n_atoms_per[:, None])[idx_m]
        mu_mol = scatter_add(v + charges * Rc, idx_m, dim_size=n_mol)
        alpha = s[..., None] * torch.eye(3, device=R.device)[None]
        mur = v[..., None, :] * Rc[..., :, None]
        alpha = scatter_add(alpha + mur + mur.transpose(1, 2), idx_m, dim_size=n_mol)
        _, f = self.outnet_force((q, mu))
        Fpred = f.squeeze(-1)
        loss = 0.05 * F.mse_loss(E / n_atoms_per, energy / n_atoms_per) + 0.95 * F.mse_loss(Fpred, forces) + F.l1_loss(mu_mol, dipole)
        return {"loss": loss, "energy": E, "forces": Fpred, "dipole_moment": mu_mol, "polarizability": alpha}


def get_inputs():
    sizes = [9, 13, 7, 11, 12, 8, 10, 15]
    idx_m = torch.cat([torch.full((n,), i) for i, n in enumerate(sizes)])
    pairs, base = [], 0
    for n in sizes:
        a = torch.arange(n)
        i, j = torch.meshgrid(a, a, indexing="ij")
        keep = i != j
        pairs.append(torch.stack([i[keep], j[keep]]) + base)
        base += n
    idx_i, idx_j = torch.cat(pairs, dim=1)
    n = sum(sizes)
    kinds = torch.tensor([1, 1, 1, 6, 6, 7, 8, 9])
    Z = kinds[torch.randint(0, 8, (n,))]
    R = torch.randn(n, 3) * 1.8
    return [Z, R, idx_i.contiguous(), idx_j.contiguous(), idx_m, torch.tensor(sizes).float(), torch.randn(8) * 3.0, torch.randn(n, 3), torch.randn(8, 3)]


def get_init_inputs():
    return [64, 3, 20, 5.0, 12]
