from collections import OrderedDict

import torch
import torch.nn as nn


class PeepholeLSTM(nn.Module):
    """LSTM with peepholes and zoneout replaced by a fixed mix; written by hand"""

    def __init__(self, i, h):
        super().__init__()
        self.wx = nn.Linear(i, 4 * h)
        self.wh = nn.Linear(h, 4 * h, bias=False)
        self.peep = nn.Parameter(torch.zeros(3, h).uniform_(-0.1, 0.1))
        nn.init.orthogonal_(self.wh.weight)
        with torch.no_grad():
            self.wx.bias[h:2 * h].fill_(1.0)

    def forward(self, x, reverse=False):
        T, B, _ = x.shape
        H = self.wh.in_features
        h = x.new_zeros(B, H)
        c = x.new_zeros(B, H)
        out = x.new_empty(T, B, H)
        gx = self.wx(x)
        order = range(T - 1, -1, -1) if reverse else range(T)
        for t in order:
            i, f, g, o = (gx[t] + self.wh(h)).chunk(4, 1)
            i = torch.sigmoid(i + self.peep[0] * c)
            f = torch.sigmoid(f + self.peep[1] * c)
            c_new = f * c + i * torch.tanh(g)
            o = torch.sigmoid(o + self.peep[2] * c_new)
            h_new = o * c_new.tanh()
            h = 0.9 * h_new + 0.1 * h
            c = c_new
            out[t] = h
        return out, (h, c)


class Model(nn.Module):
    def __init__(self, inp=20, hid=24):
        super().__init__()
        self.h0 = nn.Parameter(torch.zeros(4, 1, hid))
        self.layers = nn.ModuleDict(OrderedDict([
            ("gru", nn.GRU(inp, hid, num_layers=2, bidirectional=True)),
            ("lstm", nn.LSTM(2 * hid, hid, num_layers=1, batch_first=True, proj_size=hid // 2)),
            ("rnn", nn.RNN(hid // 2, hid, nonlinearity="relu", bias=False)),
        ]))
        self.peep = PeepholeLSTM(inp, hid)
        self.cells = nn.ModuleList([nn.GRUCell(hid, hid), nn.LSTMCell(hid, hid), nn.RNNCell(hid, hid)])
        self.attn = nn.Linear(hid, 1)

    def forward(self, x):
        # x: T, B, inp
        T, B, _ = x.shape
        state = {}
        y, hn = self.layers["gru"](x, self.h0.expand(-1, B, -1).contiguous())
        state["gru"] = hn.view(2, 2, B, -1)[-1].sum(0)
        z, (h, c) = self.layers["lstm"](y.transpose(0, 1))
        state["lstm"] = torch.cat([h, c], dim=2).squeeze(0)
        r, _ = self.layers["rnn"](z.transpose(0, 1) / 4)
        f, _ = self.peep(x)
        b, (bh, _) = self.peep(x, reverse=True)
        state["peep"] = bh
        seq = r.clamp(max=6) + f + b.flip(0).flip(0)
        hs = seq.new_zeros(B, seq.shape[2])
        hc = (hs, torch.zeros_like(hs))
        hr = hs
        outs = []
        for step in seq.unbind(0):
            hs = self.cells[0](step, hs)
            hc = self.cells[1](hs, hc)
            hr = self.cells[2](hc[0], hr)
            outs.append(hr)
        o = torch.stack(outs, dim=1)
        w = self.attn(o).squeeze(-1).softmax(1)
        pooled = torch.bmm(w.unsqueeze(1), o).squeeze(1)
        state["pooled"] = pooled
        # sort the dictionary by key like the old checkpoint did
        return torch.cat([state[k] for k in sorted(state)], 1), w, o[:, ::4].mean(1)


def get_inputs():
    return [torch.randn(16, 6, 20)]


def get_init_inputs():
    return [20, 24]
