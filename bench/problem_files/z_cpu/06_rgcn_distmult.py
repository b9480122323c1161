import torch
import torch.nn as nn
import torch.nn.functional as F


class RGCNConv(nn.Module):
    """Relational graph convolution with basis decomposition and per-relation mean aggregation."""

    def __init__(self, in_channels, out_channels, num_relations, num_bases):
        super().__init__()
        self.num_relations = num_relations
        self.weight = nn.Parameter(torch.empty(num_bases, in_channels, out_channels))
        self.comp = nn.Parameter(torch.empty(num_relations, num_bases))
        self.root = nn.Parameter(torch.empty(in_channels, out_channels))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        nn.init.xavier_uniform_(self.weight)
        nn.init.xavier_uniform_(self.comp)
        nn.init.xavier_uniform_(self.root)

    def forward(self, x, edge_index, edge_type):
        src, dst = edge_index
        n = x.size(0)
        # 1 / |N_r(i)|
        key = dst * self.num_relations + edge_type
        count = torch.zeros(n * self.num_relations, device=x.device, dtype=x.dtype)
        count = count.index_add(0, key, torch.ones_like(key, dtype=x.dtype))
        norm = 1.0 / count.clamp(min=1.0)[key]
        h = torch.einsum("ni,bio->nbo", x, self.weight)
        msg = (h[src] * self.comp[edge_type].unsqueeze(-1)).sum(dim=1)
        msg = msg * norm.unsqueeze(-1)
        out = torch.zeros(n, msg.size(-1), device=x.device, dtype=x.dtype)
        out = out.index_add(0, dst, msg)
        return out + x @ self.root + self.bias


class Model(nn.Module):
    """R-GCN encoder with a DistMult decoder for link prediction on a knowledge graph."""

    def __init__(self, num_nodes, num_relations, dim, num_bases, reg):
        super().__init__()
        self.node_emb = nn.Parameter(torch.randn(num_nodes, dim) * 0.3)
        self.rel_emb = nn.Parameter(torch.randn(num_relations, dim) * 0.3)
        self.conv1 = RGCNConv(dim, dim, 2 * num_relations, num_bases)
        self.conv2 = RGCNConv(dim, dim, 2 * num_relations, num_bases)
        self.num_relations = num_relations
        self.reg = reg

    def encode(self, edge_index, edge_type):
        # add the inverse relations
        ei = torch.cat([edge_index, edge_index.flip(0)], dim=1)
        et = torch.cat([edge_type, edge_type + self.num_relations], dim=0)
        x = self.conv1(self.node_emb, ei, et).relu_()
        return self.conv2(x, ei, et)

    def decode(self, z, edge_index, edge_type):
        z_src, z_dst = z[edge_index[0]], z[edge_index[1]]
        return torch.sum(z_src * self.rel_emb[edge_type] * z_dst, dim=1)

    def forward(self, edge_index, edge_type, neg_head, neg_tail):
        z = self.encode(edge_index, edge_type)
        pos_out = self.decode(z, edge_index, edge_type)
        neg_edge = torch.stack([neg_head, neg_tail])
        neg_out = self.decode(z, neg_edge, edge_type)
        out = torch.cat([pos_out, neg_out])
        gt = torch.cat([torch.ones_like(pos_out), torch.zeros_like(neg_out)])
        loss = F.binary_cross_entropy_with_logits(out, gt)
        reg_loss = z.pow(2).mean() + self.rel_emb.pow(2).mean()
        return loss + self.reg * reg_loss, z


N, E, R = 3000, 10000, 20


def get_inputs():
    return [torch.randint(0, N, (2, E)), torch.randint(0, R, (E,)), torch.randint(0, N, (E,)),
            torch.randint(0, N, (E,))]


def get_init_inputs():
    return [N, R, 64, 4, 1e-2]
