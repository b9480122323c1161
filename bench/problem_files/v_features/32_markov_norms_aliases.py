import torch
import torch.nn as nn


class Model(nn.Module):
    """Chains and their spectra: a product chain by kron, matrix powers, stationary laws by
    power iteration, block iteration with QR, norms of every kind, four-operand einsum.
    The inputs alias one another: a matrix, itself, its transpose, strided rows, an expanded row."""

    def __init__(self, rank, steps):
        super().__init__()
        self.rank, self.steps = rank, steps
        self.mix = nn.Parameter(torch.tensor([0.5, 0.3, 0.2]))

    @staticmethod
    def stochastic(a):
        p = a.abs() + 0.05
        return p / p.sum(1, keepdim=True)

    def stationary(self, p):
        x = p.new_full((p.shape[0],), 1.0 / p.shape[0])
        for _ in range(self.steps):
            x = torch.mv(p.mT, x)
            x = x / torch.linalg.vector_norm(x, ord=1)
        return x

    def norms(self, m):
        found = [torch.linalg.matrix_norm(m, ord=o) for o in ("fro", "nuc", 1, -1, float("inf"), float("-inf"), 2)]
        found += [torch.linalg.vector_norm(m, ord=o) for o in (0.5, 1, 3, float("inf"), float("-inf"))]
        found += [torch.linalg.vector_norm(m, ord=0).detach(), torch.linalg.cond(m.detach() + 3 * torch.eye(*m.shape, dtype=m.dtype))]
        return torch.stack(found)

    def forward(self, a, same, transposed, rows, law):
        n = a.shape[0]
        p = self.stochastic(a)
        q = torch.softmax(same[:7, :7], dim=1)
        product = torch.kron(q, p[:11, :11] / p[:11, :11].sum(1, keepdim=True))
        pi = self.stationary(product)
        three = torch.linalg.matrix_power(p, 3)
        mixture = self.mix[0] * p + self.mix[1] * p @ p + self.mix[2] * three
        reached = law[:1] @ mixture - law.mean(0, keepdim=True) @ p
        chain = torch.linalg.multi_dot([rows, p, transposed, q.new_ones(n, 5), q[:5]])

        sym = 0.5 * (a + transposed) / n**0.5
        basis = torch.eye(n, self.rank, dtype=a.dtype) + 0.1 * sym[:, : self.rank]
        shifted = sym + 4.0 * torch.eye(n, dtype=a.dtype)
        for _ in range(3):
            basis, _ = torch.linalg.qr(shifted @ basis)
        ritz = torch.einsum("ir,ij,js->rs", basis, sym, basis)
        spectrum = torch.linalg.svdvals(ritz.detach())
        trace4 = torch.einsum("ij,jk,kl,li->", sym, sym, transposed, same) / n**3
        rotated = torch.rot90(p, 1, (0, 1)) - torch.rot90(p, -1, (0, 1)).flipud()
        corner = torch.tensordot(rows, same, dims=([1], [1])) / n

        same_copy = same.clone()  # written in place; the inputs must stay as they are
        band = same_copy.diagonal(offset=1)
        band.mul_(0.5).add_(1.0)
        same_copy[::3].clamp_(-1, 1)
        same_copy.triu_(-2)
        filled = law.clone()
        filled[1] += rows[0]
        filled[:, ::4] = law.new_tensor(0.25)
        gauge = torch.outer(pi[:13], pi[13:20]).tile(2, 3)
        distance = torch.cdist(rows, transposed[:19], p=1.0) - torch.cdist(rows, a[:19], p=float("inf"))
        packed = sym[tuple(torch.tril_indices(n, n, -3))].view(-1)[::7]
        return pi, mixture, reached, chain, ritz.diagonal(), spectrum, trace4, rotated, corner, same_copy, filled, gauge, distance, packed, self.norms(sym[:17, :15])


def get_inputs():
    a = torch.randn(101, 101)
    return [a, a, a.t(), a[3:80:8], a[5].expand(6, 101)]


def get_init_inputs():
    return [9, 25]
