import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, ch, dim, codes, stages, decay):
        super().__init__()
        self.stages, self.codes, self.decay = stages, codes, decay
        self.down = nn.Conv2d(ch, dim, 1)
        self.up = nn.Conv2d(dim, ch, 1)
        self.register_buffer("book", torch.randn(stages, codes, dim) * torch.tensor([0.7, 0.5, 0.35])[:stages, None, None])
        self.register_buffer("size", torch.rand(stages, codes) * 4 + 0.5)
        self.register_buffer("total", self.book * self.size.unsqueeze(-1))

    def forward(self, x):
        b, _, hh, ww = x.shape
        z = self.down(x).permute(0, 2, 3, 1).reshape(-1, self.book.shape[-1])
        residual = z
        quant = torch.zeros_like(z)
        commit, sizes, books, ids, perplexity = 0.0, [], [], [], []
        for s in range(self.stages):
            book = self.book[s]
            d = residual.square().sum(1, keepdim=True) - 2 * residual @ book.T + book.square().sum(1)
            idx = d.argmin(1)
            e = F.embedding(idx, book)
            commit = commit + F.mse_loss(residual, e.detach()) + 0.25 * F.mse_loss(e, residual.detach())
            hot = F.one_hot(idx, self.codes).to(z.dtype)
            count = hot.sum(0)
            size = self.size[s] * self.decay + (1 - self.decay) * count
            total = self.total[s] * self.decay + (1 - self.decay) * (hot.T @ residual)
            n = size.sum()
            smoothed = (size + 1e-5) / (n + self.codes * 1e-5) * n
            new_book = total / smoothed.unsqueeze(1)
            books.append(torch.where((size < 0.4).unsqueeze(1), book * 1.01, new_book))
            sizes.append(size)
            avg = count / count.sum()
            perplexity.append(torch.exp(-(avg * torch.log(avg + 1e-10)).sum()))
            quant = quant + e
            residual = residual - e
            ids.append(idx.view(b, hh, ww))
        quant = z + (quant - z).detach()
        y = self.up(quant.view(b, hh, ww, -1).permute(0, 3, 1, 2))
        return y, commit, torch.stack(ids, -1), torch.stack(perplexity), torch.stack(sizes), torch.stack(books)


def get_inputs():
    return [torch.randn(2, 19, 29, 31)]


def get_init_inputs():
    return [19, 26, 257, 3, 0.97]
