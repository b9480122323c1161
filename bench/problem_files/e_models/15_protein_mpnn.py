import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def gather_edges(edges, neighbor_idx):
    # Features [B,N,N,C] at neighbor indices [B,N,K] => neighbor features [B,N,K,C]
    neighbors = neighbor_idx.unsqueeze(-1).expand(-1, -1, -1, edges.size(-1))
    return torch.gather(edges, 2, neighbors)


def gather_nodes(nodes, neighbor_idx):
    # Features [B,N,C] at neighbor indices [B,N,K] => [B,N,K,C]
    neighbors_flat = neighbor_idx.view((neighbor_idx.shape[0], -1))
    neighbors_flat = neighbors_flat.unsqueeze(-1).expand(-1, -1, nodes.size(2))
    neighbor_features = torch.gather(nodes, 1, neighbors_flat)
    return neighbor_features.view(list(neighbor_idx.shape)[:3] + [-1])


def cat_neighbors_nodes(h_nodes, h_neighbors, E_idx):
    h_nodes = gather_nodes(h_nodes, E_idx)
    return torch.cat([h_neighbors, h_nodes], -1)


class PositionalEncodings(nn.Module):
    def __init__(self, num_embeddings, max_relative_feature=32):
        super().__init__()
        self.max_relative_feature = max_relative_feature
        self.linear = nn.Linear(2 * max_relative_feature + 1 + 1, num_embeddings)

    def forward(self, offset, mask):
        m = self.max_relative_feature
        d = torch.clip(offset + m, 0, 2 * m) * mask + (1 - mask) * (2 * m + 1)
        d_onehot = torch.nn.functional.one_hot(d, 2 * m + 1 + 1)
        return self.linear(d_onehot.float())


class ProteinFeatures(nn.Module):
    def __init__(self, edge_features, num_positional_embeddings=16, num_rbf=16, top_k=30):
        super().__init__()
        self.top_k, self.num_rbf = top_k, num_rbf
        self.embeddings = PositionalEncodings(num_positional_embeddings)
        self.edge_embedding = nn.Linear(num_positional_embeddings + num_rbf * 25, edge_features, bias=False)
        self.norm_edges = nn.LayerNorm(edge_features)

    def _dist(self, X, mask, eps=1e-6):
        mask_2D = torch.unsqueeze(mask, 1) * torch.unsqueeze(mask, 2)
        dX = torch.unsqueeze(X, 1) - torch.unsqueeze(X, 2)
        D = mask_2D * torch.sqrt(torch.sum(dX**2, 3) + eps)
        D_max, _ = torch.max(D, -1, keepdim=True)
        D_adjust = D + (1.0 - mask_2D) * D_max
        D_neighbors, E_idx = torch.topk(D_adjust, np.minimum(self.top_k, X.shape[1]), dim=-1, largest=False)
        return D_neighbors, E_idx

    def _rbf(self, D):
        D_min, D_max, D_count = 2.0, 22.0, self.num_rbf
        D_mu = torch.linspace(D_min, D_max, D_count, device=D.device)
        D_mu = D_mu.view([1, 1, 1, -1])
        D_sigma = (D_max - D_min) / D_count
        D_expand = torch.unsqueeze(D, -1)
        return torch.exp(-(((D_expand - D_mu) / D_sigma) ** 2))

    def _get_rbf(self, A, B, E_idx):
        D_A_B = torch.sqrt(torch.sum((A[:, :, None, :] - B[:, None, :, :]) ** 2, -1) + 1e-6)
        D_A_B_neighbors = gather_edges(D_A_B[:, :, :, None], E_idx)[:, :, :, 0]
        return self._rbf(D_A_B_neighbors)

    def forward(self, X, mask, residue_idx, chain_labels):
        b = X[:, :, 1, :] - X[:, :, 0, :]
        c = X[:, :, 2, :] - X[:, :, 1, :]
        a = torch.cross(b, c, dim=-1)
        Cb = -0.58273431 * a + 0.56802827 * b - 0.54067466 * c + X[:, :, 1, :]
        Ca, N, C, O = X[:, :, 1, :], X[:, :, 0, :], X[:, :, 2, :], X[:, :, 3, :]
        D_neighbors, E_idx = self._dist(Ca, mask)
        RBF_all = [self._rbf(D_neighbors)]
        atoms = [N, C, O, Cb]
        for at in atoms:
            RBF_all.append(self._get_rbf(at, at, E_idx))
        for at in atoms:
            RBF_all.append(self._get_rbf(Ca, at, E_idx))
            RBF_all.append(self._get_rbf(at, Ca, E_idx))
        for i, x in enumerate(atoms):
            for j, y in enumerate(atoms):
                if i != j:
                    RBF_all.append(self._get_rbf(x, y, E_idx))
        RBF_all = torch.cat(tuple(RBF_all), dim=-1)
        offset = residue_idx[:, :, None] - residue_idx[:, None, :]
        offset = gather_edges(offset[:, :, :, None], E_idx)[:, :, :, 0]
        d_chains = ((chain_labels[:, :, None] - chain_labels[:, None, :]) == 0).long()
        E_chains = gather_edges(d_chains[:, :, :, None], E_idx)[:, :, :, 0]
        E_positional = self.embeddings(offset.long(), E_chains)
        E = torch.cat((E_positional, RBF_all), -1)
        return self.norm_edges(self.edge_embedding(E)), E_idx


class PositionWiseFeedForward(nn.Module):
    def __init__(self, num_hidden, num_ff):
        super().__init__()
        self.W_in, self.W_out = nn.Linear(num_hidden, num_ff), nn.Linear(num_ff, num_hidden)
        self.act = torch.nn.GELU()

    def forward(self, h_V):
        return self.W_out(self.act(self.W_in(h_V)))


class EncLayer(nn.Module):
    def __init__(self, num_hidden, num_in, scale=30):
        super().__init__()
        self.scale = scale
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(num_hidden), nn.LayerNorm(num_hidden), nn.LayerNorm(num_hidden)
        self.W1, self.W2, self.W3 = nn.Linear(num_hidden + num_in, num_hidden), nn.Linear(num_hidden, num_hidden), nn.Linear(num_hidden, num_hidden)
        self.W11, self.W12, self.W13 = nn.Linear(num_hidden + num_in, num_hidden), nn.Linear(num_hidden, num_hidden), nn.Linear(num_hidden, num_hidden)
        self.act = torch.nn.GELU()
        self.dense = PositionWiseFeedForward(num_hidden, num_hidden * 4)

    def forward(self, h_V, h_E, E_idx, mask_V=None, mask_attend=None):
        h_EV = cat_neighbors_nodes(h_V, h_E, E_idx)
        h_V_expand = h_V.unsqueeze(-2).expand(-1, -1, h_EV.size(-2), -1)
        h_EV = torch.cat([h_V_expand, h_EV], -1)
        h_message = self.W3(self.act(self.W2(self.act(self.W1(h_EV)))))
        if mask_attend is not None:
            h_message = mask_attend.unsqueeze(-1) * h_message
        dh = torch.sum(h_message, -2) / self.scale
        h_V = self.norm1(h_V + dh)
        h_V = self.norm2(h_V + self.dense(h_V))
        if mask_V is not None:
            h_V = mask_V.unsqueeze(-1) * h_V
        h_EV = cat_neighbors_nodes(h_V, h_E, E_idx)
        h_V_expand = h_V.unsqueeze(-2).expand(-1, -1, h_EV.size(-2), -1)
        h_EV = torch.cat([h_V_expand, h_EV], -1)
        h_message = self.W13(self.act(self.W12(self.act(self.W11(h_EV)))))
        h_E = self.norm3(h_E + h_message)
        return h_V, h_E


class DecLayer(nn.Module):
    def __init__(self, num_hidden, num_in, scale=30):
        super().__init__()
        self.scale = scale
        self.norm1, self.norm2 = nn.LayerNorm(num_hidden), nn.LayerNorm(num_hidden)
        self.W1, self.W2, self.W3 = nn.Linear(num_hidden + num_in, num_hidden), nn.Linear(num_hidden, num_hidden), nn.Linear(num_hidden, num_hidden)
        self.act = torch.nn.GELU()
        self.dense = PositionWiseFeedForward(num_hidden, num_hidden * 4)

    def forward(self, h_V, h_E, mask_V=None):
        h_V_expand = h_V.unsqueeze(-2).expand(-1, -1, h_E.size(-2), -1)
        h_EV = torch.cat([h_V_expand, h_E], -1)
        h_message = self.W3(self.act(self.W2(self.act(self.W1(h_EV)))))
        dh = torch.sum(h_message, -2) / self.scale
        h_V = self.norm1(h_V + dh)
        h_V = self.norm2(h_V + self.dense(h_V))
        if mask_V is not None:
            h_V = mask_V.unsqueeze(-1) * h_V
        return h_V


class Model(nn.Module):
    """ProteinMPNN: k-nearest-neighbour backbone graph, order-agnostic autoregressive decoding masks, smoothed sequence loss."""

    def __init__(self, num_letters, hidden, n_enc, n_dec, k_neighbors):
        super().__init__()
        self.hidden_dim, self.vocab = hidden, num_letters
        self.features = ProteinFeatures(hidden, top_k=k_neighbors)
        self.W_e = nn.Linear(hidden, hidden)
        self.W_s = nn.Embedding(num_letters, hidden)
        self.encoder_layers = nn.ModuleList([EncLayer(hidden, hidden * 2) for _ in range(n_enc)])
        self.decoder_layers = nn.ModuleList([DecLayer(hidden, hidden * 3) for _ in range(n_dec)])
        self.W_out = nn.Linear(hidden, num_letters)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, X, S, mask, chain_M, residue_idx, chain_encoding_all, randn):
        device = X.device
        E, E_idx = self.features(X, mask, residue_idx, chain_encoding_all)
        h_V = torch.zeros((E.shape[0], E.shape[1], E.shape[-1]), device=device)
        h_E = self.W_e(E)
        # Encoder is unmasked self-attention
        mask_attend = gather_nodes(mask.unsqueeze(-1), E_idx).squeeze(-1)
        mask_attend = mask.unsqueeze(-1) * mask_attend
        for layer in self.encoder_layers:
            h_V, h_E = layer(h_V, h_E, E_idx, mask, mask_attend)
        # Concatenate sequence embeddings for autoregressive decoder
        h_S = self.W_s(S)
        h_ES = cat_neighbors_nodes(h_S, h_E, E_idx)
        # Build encoder embeddings
        h_EX_encoder = cat_neighbors_nodes(torch.zeros_like(h_S), h_E, E_idx)
        h_EXV_encoder = cat_neighbors_nodes(h_V, h_EX_encoder, E_idx)
        chain_M = chain_M * mask  # update chain_M to include missing regions
        decoding_order = torch.argsort((chain_M + 0.0001) * (torch.abs(randn)))
        mask_size = E_idx.shape[1]
        permutation_matrix_reverse = torch.nn.functional.one_hot(decoding_order, num_classes=mask_size).float()
        order_mask_backward = torch.einsum(
            "ij, biq, bjp->bqp",
            (1 - torch.triu(torch.ones(mask_size, mask_size, device=device))),
            permutation_matrix_reverse,
            permutation_matrix_reverse,
        )
        mask_attend = torch.gather(order_mask_backward, 2, E_idx).unsqueeze(-1)
        mask_1D = mask.view([mask.size(0), mask.size(1), 1, 1])
        mask_bw = mask_1D * mask_attend
        mask_fw = mask_1D * (1.0 - mask_attend)
        h_EXV_encoder_fw = mask_fw * h_EXV_encoder
        for layer in self.decoder_layers:
            # Masked positions attend to encoder information, unmasked see.
            h_ESV = cat_neighbors_nodes(h_V, h_ES, E_idx)
            h_ESV = mask_bw * h_ESV + h_EXV_encoder_fw
            h_V = layer(h_V, h_ESV, mask)
        logits = self.W_out(h_V)
        log_probs = F.log_softmax(logits, dim=-1)
        mask_for_loss = mask * chain_M
        # smoothed loss
        S_onehot = torch.nn.functional.one_hot(S, self.vocab).float()
        S_onehot = S_onehot + 0.1 / float(S_onehot.size(-1))
        S_onehot = S_onehot / S_onehot.sum(-1, keepdim=True)
        loss = -(S_onehot * log_probs).sum(-1)
        loss_av = torch.sum(loss * mask_for_loss) / torch.sum(mask_for_loss)
        return loss_av, log_probs * mask[..., None]


def get_inputs():
    B, L = 2, 61
    t = torch.arange(L).float()
    ca = torch.stack([2.3 * torch.cos(1.745 * t), 2.3 * torch.sin(1.745 * t), 1.5 * t % 21.0], -1)
    ca = ca[None] + torch.randn(B, L, 3) * 1.5 + (t[None, :, None] // 14) * torch.tensor([7.0, -4.0, 2.0])
    X = torch.stack([ca + torch.randn(B, L, 3) * 0.4 + torch.tensor(o) for o in ([-1.2, 0.4, 0.0], [0.0, 0.0, 0.0], [1.1, 0.8, 0.3], [1.3, 1.9, -0.2])], dim=2)
    mask = (torch.arange(L)[None] < torch.tensor([61, 49])[:, None]).float()
    X = X * mask[:, :, None, None]
    S = torch.randint(0, 21, (B, L))
    chain = (torch.arange(L)[None] >= 30).long().expand(B, -1).contiguous()
    residue_idx = torch.arange(L)[None].expand(B, -1) + 100 * chain
    chain_M = (torch.rand(B, L) > 0.2).float()
    return [X, S, mask, chain_M, residue_idx, chain, torch.randn(B, L)]


def get_init_inputs():
    return [21, 64, 2, 2, 24]
