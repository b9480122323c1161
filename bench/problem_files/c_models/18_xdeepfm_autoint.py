import torch
import torch.nn as nn
import torch.nn.functional as F


class FeaturesLinear(nn.Module):
    def __init__(self, field_dims, output_dim=1):
        super().__init__()
        self.fc = nn.Embedding(sum(field_dims), output_dim)
        self.bias = nn.Parameter(torch.zeros((output_dim,)))

    def forward(self, x):
        return torch.sum(self.fc(x), dim=1) + self.bias


class CompressedInteractionNetwork(nn.Module):
    def __init__(self, input_dim, cross_layer_sizes, split_half=True):
        super().__init__()
        self.num_layers = len(cross_layer_sizes)
        self.split_half = split_half
        self.conv_layers = nn.ModuleList()
        prev_dim, fc_input_dim = input_dim, 0
        for i in range(self.num_layers):
            size = cross_layer_sizes[i]
            self.conv_layers.append(nn.Conv1d(input_dim * prev_dim, size, 1, stride=1, dilation=1, bias=True))
            if self.split_half and i != self.num_layers - 1:
                size //= 2
            prev_dim = size
            fc_input_dim += prev_dim
        self.fc = nn.Linear(fc_input_dim, 1)

    def forward(self, x):
        xs = list()
        x0, h = x.unsqueeze(2), x
        for i in range(self.num_layers):
            x = x0 * h.unsqueeze(1)
            batch_size, f0_dim, fin_dim, embed_dim = x.shape
            x = x.view(batch_size, f0_dim * fin_dim, embed_dim)
            x = F.relu(self.conv_layers[i](x))
            if self.split_half and i != self.num_layers - 1:
                x, h = torch.split(x, x.shape[1] // 2, dim=1)
            else:
                h = x
            xs.append(x)
        return self.fc(torch.sum(torch.cat(xs, dim=1), 2))


class AutoIntInteraction(nn.Module):
    def __init__(self, embed, att, heads, layers):
        super().__init__()
        self.proj = nn.Linear(embed, att)
        self.attns = nn.ModuleList([nn.MultiheadAttention(att, heads, dropout=0.0) for _ in range(layers)])
        self.res = nn.Linear(embed, att)

    def forward(self, emb):
        # sequence-first layout: the fields are the sequence
        cross = self.proj(emb).transpose(0, 1)
        for a in self.attns:
            cross, _ = a(cross, cross, cross)
        cross = cross.transpose(0, 1)
        cross = cross + self.res(emb)
        return F.relu(cross).flatten(1)


class Model(nn.Module):
    """xDeepFM and AutoInt on shared field embeddings: linear + CIN + attention + deep, BCE loss."""

    def __init__(self, field_dims, embed, cross_sizes, att, heads, att_layers, mlp):
        super().__init__()
        offs = torch.cumsum(torch.tensor([0] + list(field_dims[:-1])), 0)
        self.register_buffer("offsets", offs.unsqueeze(0))
        self.linear = FeaturesLinear(field_dims)
        self.embedding = nn.Embedding(sum(field_dims), embed)
        nn.init.xavier_uniform_(self.embedding.weight)
        nf = len(field_dims)
        self.cin = CompressedInteractionNetwork(nf, cross_sizes)
        self.autoint = AutoIntInteraction(embed, att, heads, att_layers)
        self.att_fc = nn.Linear(nf * att, 1)
        layers, d = [], nf * embed
        for m in mlp:
            layers += [nn.Linear(d, m), nn.BatchNorm1d(m), nn.ReLU(), nn.Dropout(p=0.0)]
            d = m
        layers.append(nn.Linear(d, 1))
        self.mlp = nn.Sequential(*layers)

    def forward(self, x, y):
        x = x + self.offsets
        e = self.embedding(x)
        logit = self.linear(x) + self.cin(e) + self.att_fc(self.autoint(e)) + self.mlp(e.view(e.size(0), -1))
        logit = logit.squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logit, y, pos_weight=logit.new_tensor(2.0))
        return loss, torch.sigmoid(logit)


FIELDS = [50, 7, 300, 24, 12, 1000, 90, 31, 5, 2, 440, 18, 64, 11, 3]


def get_inputs():
    x = torch.stack([torch.randint(0, n, (250,)) for n in FIELDS], dim=1)
    return [x, (torch.rand(250) < 0.3).float()]


def get_init_inputs():
    return [FIELDS, 16, (32, 24, 16), 32, 2, 3, (128, 64)]
