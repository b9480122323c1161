import torch
import torch.nn as nn


class Model(nn.Module):
    """Index gymnastics: several index tensors, kron, block_diag, diag_embed, triangles, cartesian products, movedim, repeated einsum letters, cdist norms."""

    def __init__(self, n):
        super().__init__()
        self.core = nn.Parameter(torch.randn(3, 5, 7) * 0.5)
        self.tri = nn.Parameter(torch.randn(n * (n + 1) // 2))
        self.n = n

    def forward(self, x, i, j, keep):
        b, n, m = x.shape
        r, c = torch.tril_indices(self.n, self.n, device=x.device)
        low = x.new_zeros(self.n, self.n)
        low[r, c] = self.tri
        sym = low + low.t() - torch.diag(low.diagonal())
        pick = x[i[:, None], j[None, :n], 2]
        block = x[:, j][:, :, i % m]
        mid = x[:, i % n, :][..., None, :].transpose(1, -1)
        sep = x[i % b, :, j % m]
        neg = x[-1, -(i % n) - 1, ::2]
        put = x.index_put((i % b, j[: i.numel()] % n), x.new_tensor(0.5))
        acc = torch.zeros_like(x[0]).index_put_((i % n, j % m), x[0, 0, :1].expand(i.numel()), accumulate=True)
        tk = torch.take_along_dim(x, x.argsort(2)[:, :, :4], 2)
        flat = torch.take(x, (i * 31 + j) % x.numel())

        kr = torch.kron(self.core[:, 0], x[0, :4, :3])
        bd = torch.block_diag(self.core[0], x[1, :2, :3], self.core[1, :1])
        de = torch.diag_embed(x[:, :, :5], offset=-1, dim1=0, dim2=2)
        up = torch.triu(x @ x.mT, 2) - torch.tril(x @ x.mT, -3)
        cart = torch.cartesian_prod(x[0, :3, 0], x[0, :4, 1], x[1, 0, :2]).prod(1)
        comb = torch.combinations(x[0, 0, :9], 2).diff(dim=1).squeeze(1)
        tr = torch.einsum("bii->b", x[:, :, :n] if m >= n else x.mT[:, :, :m])
        tuck = torch.einsum("abc,nia,nib->nic", self.core, x[:, :, :3], x[:, :, 3:8])
        dd = torch.einsum("bij,bij,bkj->bk", x, x, x[:, :3])
        out = torch.einsum("i,j,k->kij", x[0, 0, :3], x[0, 1, :5], x[0, 2, :7]) + self.core.permute(2, 0, 1)
        td = torch.tensordot(x[:, :5, :7], self.core, dims=([1, 2], [1, 2]))
        ds = [torch.cdist(x, x[:, ::3] + 0.25, p=p) for p in (1.0, 2.0, 3.0, float("inf"))]
        van = torch.vander(x.detach()[0, 0, :6] * 0.5, N=4, increasing=True)
        toe = x[0, 0][(torch.arange(7, device=x.device)[:, None] - torch.arange(7, device=x.device)).abs()]
        win = x.as_strided((b, n, m - 4, 5), (n * m, m, 1, 1))
        soft = (win.amax(-1) - win.amin(-1)) * torch.where(keep[:, None, None], 1.0, -0.5)
        rolled = torch.roll(x, shifts=(2, -3), dims=(0, 2)).rot90(1, (1, 2)).flip((0,))
        stack = torch.hstack([x[0], x[1]]), torch.dstack([x[0, :3], x[1, :3]]), torch.column_stack([x[0, :, 0], x[1]])
        split = [t.sum(-1) * (k + 1) for k, t in enumerate(torch.tensor_split(x, (3, 3, 11), dim=2))]
        fold = x.unflatten(2, (-1, 1)).swapaxes(1, 2).flatten(0, 1).squeeze(-1).contiguous().narrow(0, 5, 9)
        rep = torch.repeat_interleave(x[0, :, 0], 3).view(-1, 3).T * torch.tile(x[0, :, 1], (3, 1))
        return (sym, pick, block, mid, sep, neg, put, acc, tk, flat), {"kr": kr, "bd": bd, "de": de, "up": up, "cart": cart, "comb": comb}, \
            (tr, tuck, dd, out, td), ds, van, toe, soft, rolled, stack, split, fold, rep


def get_inputs():
    return [torch.randn(11, 17, 19), torch.randint(0, 11, (23,)), torch.randint(0, 17, (23,)), torch.rand(11) < 0.5]


def get_init_inputs():
    return [13]
