import torch
import torch.nn as nn
import torch.nn.functional as F


class LockedDropout(nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training or not self.p:
            return x
        m = x.new_empty(1, x.size(1), x.size(2)).bernoulli_(1 - self.p)
        return x * (m / (1 - self.p)).expand_as(x)


class Model(nn.Module):
    """AWD-style LSTM language model: layers in a ModuleList, softmax tied to the
    embedding, activation (AR) and temporal (TAR) regularisation in the loss."""

    def __init__(self, ntoken, ninp, nhid, nlayers, alpha=2.0, beta=1.0):
        super().__init__()
        self.ninp, self.nhid, self.nlayers = ninp, nhid, nlayers
        self.alpha, self.beta = alpha, beta
        self.lockdrop = LockedDropout(0.0)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnns = nn.ModuleList(
            [
                nn.LSTM(ninp if l == 0 else nhid, nhid if l != nlayers - 1 else ninp, 1)
                for l in range(nlayers)
            ]
        )
        self.decoder = nn.Linear(ninp, ntoken)
        self.decoder.weight = self.encoder.weight
        self.init_weights()

    def init_weights(self):
        initrange = 0.1
        self.encoder.weight.data.uniform_(-initrange, initrange)
        self.decoder.bias.data.fill_(0)
        for rnn in self.rnns:
            for name, p in rnn.named_parameters():
                if name.startswith("weight_hh"):
                    for w in p.data.chunk(4, 0):
                        nn.init.orthogonal_(w)
                elif name.startswith("bias_ih"):
                    p.data.zero_()
                    n = p.size(0)
                    p.data[n // 4: n // 2].fill_(1.0)  # forget gate

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return [
            (
                weight.new_zeros(1, bsz, self.nhid if l != self.nlayers - 1 else self.ninp),
                weight.new_zeros(1, bsz, self.nhid if l != self.nlayers - 1 else self.ninp),
            )
            for l in range(self.nlayers)
        ]

    def forward(self, data, targets):
        # data, targets: [seq len, batch]
        hidden = self.init_hidden(data.size(1))
        emb = self.encoder(data)
        raw_output = self.lockdrop(emb)
        new_hidden, raw_outputs = [], []
        for l, rnn in enumerate(self.rnns):
            rnn.flatten_parameters()
            raw_output, new_h = rnn(raw_output, hidden[l])
            new_hidden.append(new_h)
            raw_outputs.append(raw_output)
            if l != self.nlayers - 1:
                raw_output = self.lockdrop(raw_output)
        output = self.lockdrop(raw_output)

        result = output.view(output.size(0) * output.size(1), output.size(2))
        logits = self.decoder(result)
        raw_loss = F.cross_entropy(logits, targets.reshape(-1))
        loss = raw_loss
        loss = loss + self.alpha * output.pow(2).mean()
        loss = loss + self.beta * (raw_outputs[-1][1:] - raw_outputs[-1][:-1]).pow(2).mean()
        h_last = torch.cat([h[0].squeeze(0) for h in new_hidden], dim=-1)
        c_last = torch.cat([h[1].squeeze(0) for h in new_hidden], dim=-1)
        return loss, torch.exp(raw_loss.detach().clamp(max=20.0)), h_last, c_last


def get_inputs():
    g = torch.Generator().manual_seed(15)
    stream = torch.randint(0, 4003, (44, 14), generator=g)
    return [stream[:-1].clone(), stream[1:].clone()]


def get_init_inputs():
    return [4003, 152, 300, 3]
