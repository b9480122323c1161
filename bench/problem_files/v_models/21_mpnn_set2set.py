import torch
import torch.nn as nn
import torch.nn.functional as F


def scatter_mean(x, index, n):
    out = x.new_zeros((n,) + x.shape[1:]).index_add_(0, index, x)
    count = x.new_zeros(n).index_add_(0, index, x.new_ones(x.size(0)))
    return out / count.clamp_(min=1).view(-1, *[1] * (x.dim() - 1))


def softmax_by(x, index, n):
    top = x.new_full((n,), -1e30).index_reduce(0, index, x, "amax")
    e = (x - top[index]).exp()
    return e / (x.new_zeros(n).index_add(0, index, e)[index] + 1e-16)


class NNConv(nn.Module):
    """Messages through a matrix that an edge network makes from the bond's features."""

    def __init__(self, d, edge, hidden):
        super().__init__()
        self.d = d
        self.net = nn.Sequential(nn.Linear(edge, hidden), nn.ReLU(), nn.Linear(hidden, d * d))
        self.root = nn.Linear(d, d)

    def matrices(self, edge_attr):
        return self.net(edge_attr).view(-1, self.d, self.d)

    def forward(self, x, src, dst, W):
        m = torch.matmul(x.index_select(0, src).unsqueeze(1), W).squeeze(1)
        return scatter_mean(m, dst, x.size(0)) + self.root(x)


class Set2Set(nn.Module):
    def __init__(self, d, steps):
        super().__init__()
        self.d, self.steps = d, steps
        self.lstm = nn.LSTM(2 * d, d)

    def forward(self, x, batch, n):
        h = (x.new_zeros(1, n, self.d), x.new_zeros(1, n, self.d))
        q_star = x.new_zeros(n, 2 * self.d)
        for _ in range(self.steps):
            q, h = self.lstm(q_star.unsqueeze(0), h)
            q = q.squeeze(0)
            a = softmax_by((x * q[batch]).sum(-1), batch, n)
            r = x.new_zeros(n, self.d).index_add(0, batch, a.unsqueeze(-1) * x)
            q_star = torch.cat([q, r], dim=-1)
        return q_star


class Model(nn.Module):
    """Message passing for molecules: edge network, GRU update, a virtual node a graph, jumping knowledge,
    Set2Set readout, several regression targets of which some are missing."""

    def __init__(self, node, edge, d, hidden, steps, graphs, targets):
        super().__init__()
        self.steps, self.graphs = steps, graphs
        self.lin = nn.Linear(node, d)
        self.conv = NNConv(d, edge, hidden)
        self.gru = nn.GRU(d, d)
        self.virtual = nn.Embedding(1, d)
        self.vmlp = nn.Sequential(nn.Linear(d, 2 * d), nn.BatchNorm1d(2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.jk = nn.LSTM(d, d // 2, bidirectional=True, batch_first=True)
        self.att = nn.Linear(2 * (d // 2), 1)
        self.pool = Set2Set(d, 3)
        self.head = nn.Sequential(nn.Linear(2 * d, d), nn.ReLU(), nn.Linear(d, targets))

    def forward(self, x, edge_index, edge_attr, batch, y):
        src, dst = edge_index
        src, dst = torch.cat([src, dst]), torch.cat([dst, src])
        W = self.conv.matrices(torch.cat([edge_attr, edge_attr]))
        out = F.relu(self.lin(x))
        h = out.unsqueeze(0)
        v = self.virtual.weight.expand(self.graphs, -1)
        xs = []
        for _ in range(self.steps):
            m = F.relu(self.conv(out + v[batch], src, dst, W))
            out, h = self.gru(m.unsqueeze(0), h)
            out = out.squeeze(0)
            v = v + self.vmlp(v.index_add(0, batch, out))
            xs.append(out)
        stack = torch.stack(xs, dim=1)
        alpha = torch.softmax(self.att(self.jk(stack)[0]).squeeze(-1), dim=-1)
        out = (stack * alpha.unsqueeze(-1)).sum(1)
        pred = self.head(self.pool(out, batch, self.graphs))
        known = ~torch.isnan(y)
        loss = torch.where(known, F.l1_loss(pred, torch.nan_to_num(y), reduction="none"), torch.zeros_like(pred))
        return pred, loss.sum() / known.sum()


def get_inputs():
    sizes = torch.tensor([11, 7, 14, 9, 12])
    batch = torch.repeat_interleave(torch.arange(5), sizes)
    start = (sizes.cumsum(0) - sizes)[batch]
    e = torch.arange(sizes.sum()).repeat(2)
    other = start[e] + (torch.rand(e.numel()) * sizes[batch][e]).long()
    y = torch.randn(5, 4)
    y[1, 2] = y[4, 0] = float("nan")
    return [torch.randn(int(sizes.sum()), 13), torch.stack([e, other]), torch.rand(e.numel(), 5), batch, y]


def get_init_inputs():
    return [13, 5, 26, 30, 4, 5, 4]
