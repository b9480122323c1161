import torch
import torch.nn as nn
import torch.nn.functional as F


class QREmbeddingBag(nn.Module):
    """Quotient-remainder compositional embeddings, summed over each bag."""

    def __init__(self, num_categories, embedding_dim, num_collisions, operation="mult"):
        super().__init__()
        self.num_collisions, self.operation = num_collisions, operation
        num_q = -(-num_categories // num_collisions)
        self.weight_q = nn.Parameter(torch.empty(num_q, embedding_dim).uniform_(0.5, 1.5))
        self.weight_r = nn.Parameter(torch.empty(num_collisions, embedding_dim).uniform_(-0.3, 0.3))

    def forward(self, input, offsets):
        input_q = (input / self.num_collisions).long()
        input_r = torch.remainder(input, self.num_collisions).long()
        embed_q = F.embedding_bag(input_q, self.weight_q, offsets, mode="sum")
        embed_r = F.embedding_bag(input_r, self.weight_r, offsets, mode="sum")
        if self.operation == "mult":
            return embed_q * embed_r
        return torch.cat((embed_q, embed_r), dim=1)


class MLP(nn.Module):
    def __init__(self, sizes, last_activation=True):
        super().__init__()
        layers = nn.ModuleList()
        for i in range(len(sizes) - 1):
            LL = nn.Linear(sizes[i], sizes[i + 1], bias=True)
            LL.weight.data.normal_(0.0, (2.0 / (sizes[i] + sizes[i + 1])) ** 0.5)
            LL.bias.data.normal_(0.0, (1.0 / sizes[i + 1]) ** 0.5)
            layers.append(LL)
            if i < len(sizes) - 2 or last_activation:
                layers.append(nn.ReLU())
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


class CrossNetMix(nn.Module):
    """DCN-v2's gated mixture of low-rank cross experts."""

    def __init__(self, in_features, low_rank, num_experts, layer_num):
        super().__init__()
        self.layer_num, self.num_experts = layer_num, num_experts
        # U: (in_features, low_rank)
        self.U_list = nn.Parameter(torch.Tensor(layer_num, num_experts, in_features, low_rank))
        # V: (in_features, low_rank)
        self.V_list = nn.Parameter(torch.Tensor(layer_num, num_experts, in_features, low_rank))
        # C: (low_rank, low_rank)
        self.C_list = nn.Parameter(torch.Tensor(layer_num, num_experts, low_rank, low_rank))
        self.gating = nn.ModuleList([nn.Linear(in_features, 1, bias=False) for _ in range(num_experts)])
        self.bias = nn.Parameter(torch.zeros(layer_num, in_features, 1))
        for p in (self.U_list, self.V_list, self.C_list):
            for i in range(layer_num):
                nn.init.xavier_normal_(p[i])

    def forward(self, inputs):
        x_0 = inputs.unsqueeze(2)  # (bs, in_features, 1)
        x_l = x_0
        for i in range(self.layer_num):
            output_of_experts = []
            gating_score_of_experts = []
            for expert_id in range(self.num_experts):
                # (1) G(x_l): compute the gating score by x_l
                gating_score_of_experts.append(self.gating[expert_id](x_l.squeeze(2)))
                # (2) E(x_l): project the input x_l to the low-rank space
                v_x = torch.matmul(self.V_list[i][expert_id].t(), x_l)  # (bs, low_rank, 1)
                # nonlinear activation in low rank space
                v_x = torch.tanh(v_x)
                v_x = torch.matmul(self.C_list[i][expert_id], v_x)
                v_x = torch.tanh(v_x)
                # project back to the full space
                uv_x = torch.matmul(self.U_list[i][expert_id], v_x)  # (bs, in_features, 1)
                dot_ = uv_x + self.bias[i]
                dot_ = x_0 * dot_  # Hadamard product
                output_of_experts.append(dot_.squeeze(2))
            # (3) mixture of low-rank experts
            output_of_experts = torch.stack(output_of_experts, 2)  # (bs, in_features, num_experts)
            gating_score_of_experts = torch.stack(gating_score_of_experts, 1)  # (bs, num_experts, 1)
            moe_out = torch.matmul(output_of_experts, gating_score_of_experts.softmax(1))
            x_l = moe_out + x_l  # (bs, in_features, 1)
        return x_l.squeeze(2)


class Model(nn.Module):
    """DLRM with DCN-v2: bagged categorical features (plain and compositional), dot interactions, low-rank cross experts, clamped BCE."""

    def __init__(self, dense_dim, table_sizes, emb_dim, bot, top, low_rank, num_experts, cross_layers, qr_threshold):
        super().__init__()
        self.emb_l = nn.ModuleList()
        for n in table_sizes:
            if n > qr_threshold:
                self.emb_l.append(QREmbeddingBag(n, emb_dim, 64))
            else:
                EE = nn.EmbeddingBag(n, emb_dim, mode="sum", sparse=False)
                EE.weight.data.uniform_(-((1 / n) ** 0.5), (1 / n) ** 0.5)
                self.emb_l.append(EE)
        self.bot_l = MLP([dense_dim] + bot + [emb_dim])
        n_feat = len(table_sizes) + 1
        self.crossnet = CrossNetMix(n_feat * emb_dim, low_rank, num_experts, cross_layers)
        n_pairs = n_feat * (n_feat - 1) // 2
        self.top_l = MLP([emb_dim + n_pairs + n_feat * emb_dim] + top + [1], last_activation=False)
        self.loss_threshold = 1e-5

    def interact_features(self, x, ly):
        (batch_size, d) = x.shape
        T = torch.cat([x] + ly, dim=1).view((batch_size, -1, d))
        Z = torch.bmm(T, torch.transpose(T, 1, 2))
        _, ni, nj = Z.shape
        li = torch.tensor([i for i in range(ni) for j in range(i)])
        lj = torch.tensor([j for i in range(nj) for j in range(i)])
        Zflat = Z[:, li, lj]
        return torch.cat([x] + [Zflat], dim=1), T.flatten(1)

    def forward(self, dense_x, lS_o, lS_i, target):
        x = self.bot_l(torch.log1p(dense_x.clamp(min=0)))
        ly = [E(lS_i[k], lS_o[k]) for k, E in enumerate(self.emb_l)]
        z, flat = self.interact_features(x, ly)
        p = self.top_l(torch.cat([z, self.crossnet(flat)], dim=1))
        p = torch.sigmoid(p)
        z = torch.clamp(p, min=self.loss_threshold, max=1.0 - self.loss_threshold)
        loss = F.binary_cross_entropy(z, target, reduction="none")
        weights = torch.where(target > 0.5, 2.0, 0.7)
        return z, (loss * weights).mean()


def get_inputs():
    B, hot = 509, 4
    sizes = [40, 300, 1000, 12, 5000, 700, 90]
    lengths = (torch.arange(B) % hot) + 1
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]])
    total = int(lengths.sum())
    idx = torch.stack([torch.randint(0, n, (total,)) for n in sizes])
    return [torch.randn(B, 13) * 3, offsets[None].repeat(len(sizes), 1), idx, (torch.rand(B, 1) < 0.3).float()]


def get_init_inputs():
    return [13, [40, 300, 1000, 12, 5000, 700, 90], 48, [256, 128], [384, 192], 48, 4, 3, 2000]
