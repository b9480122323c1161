import torch
import torch.nn.functional as F
from torch import einsum, nn


class Residual(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x, **kwargs):
        return self.fn(x, **kwargs) + x


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fn = fn

    def forward(self, x, **kwargs):
        return self.fn(self.norm(x), **kwargs)


class GEGLU(nn.Module):
    def forward(self, x):
        x, gates = x.chunk(2, dim=-1)
        return x * F.gelu(gates)


class FeedForward(nn.Module):
    def __init__(self, dim, mult=4, dropout=0.0):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, dim * mult * 2), GEGLU(), nn.Dropout(dropout), nn.Linear(dim * mult, dim))

    def forward(self, x):
        return self.net(x)


class Attention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=16, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads, self.scale = heads, dim_head**-0.5
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.to_out = nn.Linear(inner_dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        b, n, _, h = *x.shape, self.heads
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = map(lambda t: t.reshape(b, n, h, -1).permute(0, 2, 1, 3), (q, k, v))
        sim = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        attn = self.dropout(sim.softmax(dim=-1))
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(out.permute(0, 2, 1, 3).reshape(b, n, -1))


class RowColTransformer(nn.Module):
    def __init__(self, dim, nfeats, depth, heads, dim_head):
        super().__init__()
        self.layers = nn.ModuleList([])
        for _ in range(depth):
            self.layers.append(
                nn.ModuleList(
                    [
                        PreNorm(dim, Residual(Attention(dim, heads=heads, dim_head=dim_head))),
                        PreNorm(dim, Residual(FeedForward(dim))),
                        PreNorm(dim * nfeats, Residual(Attention(dim * nfeats, heads=heads, dim_head=32))),
                        PreNorm(dim * nfeats, Residual(FeedForward(dim * nfeats, mult=1))),
                    ]
                )
            )

    def forward(self, x):
        _, n, _ = x.shape
        for attn1, ff1, attn2, ff2 in self.layers:
            x = attn1(x)
            x = ff1(x)
            x = x.reshape(1, x.shape[0], -1)  # b n d -> 1 b (n d)
            x = attn2(x)
            x = ff2(x)
            x = x.reshape(x.shape[1], n, -1)  # 1 b (n d) -> b n d
        return x


class simple_MLP(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dims[0], dims[1]), nn.ReLU(), nn.Linear(dims[1], dims[2]))

    def forward(self, x):
        if len(x.shape) == 1:
            x = x.view(x.size(0), -1)
        return self.layers(x)


class sep_MLP(nn.Module):
    def __init__(self, dim, len_feats, categories):
        super().__init__()
        self.len_feats = len_feats
        self.layers = nn.ModuleList([simple_MLP([dim, 3 * dim, categories[i]]) for i in range(len_feats)])

    def forward(self, x):
        y_pred = list([])
        for i in range(self.len_feats):
            y_pred.append(self.layers[i](x[:, i, :]))
        return y_pred


class Model(nn.Module):
    """SAINT tabular pre-training: attention over columns and over the rows of the batch, CutMix and mixup views, contrastive and denoising losses."""

    def __init__(self, categories, num_continuous, dim, depth, heads):
        super().__init__()
        self.num_categories, self.num_continuous = len(categories), num_continuous
        self.categories = list(categories)
        total_tokens = sum(categories)
        offset = F.pad(torch.tensor(list(categories)), (1, 0), value=0).cumsum(dim=-1)[:-1]
        self.register_buffer("categories_offset", offset)
        cat_mask_offset = F.pad(torch.full((self.num_categories,), 2, dtype=torch.long), (1, 0), value=0).cumsum(dim=-1)[:-1]
        con_mask_offset = F.pad(torch.full((num_continuous,), 2, dtype=torch.long), (1, 0), value=0).cumsum(dim=-1)[:-1]
        self.register_buffer("cat_mask_offset", cat_mask_offset)
        self.register_buffer("con_mask_offset", con_mask_offset)
        self.embeds = nn.Embedding(total_tokens, dim)
        self.mask_embeds_cat = nn.Embedding(self.num_categories * 2, dim)
        self.mask_embeds_cont = nn.Embedding(num_continuous * 2, dim)
        self.simple_MLP = nn.ModuleList([simple_MLP([1, 50, dim]) for _ in range(num_continuous)])
        nfeats = self.num_categories + num_continuous
        self.transformer = RowColTransformer(dim, nfeats, depth, heads, 16)
        self.pt_mlp = simple_MLP([dim * nfeats, 6 * dim * nfeats // 5, dim * nfeats // 2])
        self.pt_mlp2 = simple_MLP([dim * nfeats, 6 * dim * nfeats // 5, dim * nfeats // 2])
        self.mlp1 = sep_MLP(dim, self.num_categories, categories)
        self.mlp2 = sep_MLP(dim, num_continuous, [1] * num_continuous)

    def embed_data_mask(self, x_categ, x_cont, cat_mask, con_mask):
        x_categ = x_categ + self.categories_offset.type_as(x_categ)
        x_categ_enc = self.embeds(x_categ)
        n1, n2 = x_cont.shape
        x_cont_enc = torch.empty(n1, n2, x_categ_enc.shape[-1], device=x_cont.device)
        for i in range(self.num_continuous):
            x_cont_enc[:, i, :] = self.simple_MLP[i](x_cont[:, i])
        cat_mask_temp = cat_mask + self.cat_mask_offset.type_as(cat_mask)
        con_mask_temp = con_mask + self.con_mask_offset.type_as(con_mask)
        cat_mask_temp = self.mask_embeds_cat(cat_mask_temp)
        con_mask_temp = self.mask_embeds_cont(con_mask_temp)
        x_categ_enc[cat_mask == 0] = cat_mask_temp[cat_mask == 0]
        x_cont_enc[con_mask == 0] = con_mask_temp[con_mask == 0]
        return x_categ_enc, x_cont_enc

    def add_noise(self, x_categ, x_cont, perm, cat_corr, con_corr):
        x1, x2 = x_categ[perm, :], x_cont[perm, :]
        x_categ_corr, x_cont_corr = x_categ.clone().detach(), x_cont.clone().detach()
        x_categ_corr[cat_corr == 0] = x1[cat_corr == 0]
        x_cont_corr[con_corr == 0] = x2[con_corr == 0]
        return x_categ_corr, x_cont_corr

    def mixup_data(self, x1, x2, perm, lam=0.3):
        return lam * x1 + (1 - lam) * x1[perm], lam * x2 + (1 - lam) * x2[perm]

    def encode(self, c, n):
        return self.transformer(torch.cat((c, n), dim=1))

    def forward(self, x_categ, x_cont, cat_mask, con_mask, perm_cutmix, perm_mixup, cat_corr, con_corr):
        x_categ_corr, x_cont_corr = self.add_noise(x_categ, x_cont, perm_cutmix, cat_corr, con_corr)
        x_categ_enc_2, x_cont_enc_2 = self.embed_data_mask(x_categ_corr, x_cont_corr, cat_mask, con_mask)
        x_categ_enc, x_cont_enc = self.embed_data_mask(x_categ, x_cont, cat_mask, con_mask)
        x_categ_enc_2, x_cont_enc_2 = self.mixup_data(x_categ_enc_2, x_cont_enc_2, perm_mixup)
        loss = 0
        # contrastive
        aug_features_1 = self.encode(x_categ_enc, x_cont_enc)
        aug_features_2 = self.encode(x_categ_enc_2, x_cont_enc_2)
        aug_features_1 = (aug_features_1 / aug_features_1.norm(dim=-1, keepdim=True)).flatten(1, 2)
        aug_features_2 = (aug_features_2 / aug_features_2.norm(dim=-1, keepdim=True)).flatten(1, 2)
        aug_features_1 = self.pt_mlp(aug_features_1)
        aug_features_2 = self.pt_mlp2(aug_features_2)
        logits_per_aug1 = aug_features_1 @ aug_features_2.t() / 0.7
        logits_per_aug2 = aug_features_2 @ aug_features_1.t() / 0.7
        targets = torch.arange(logits_per_aug1.size(0), device=logits_per_aug1.device)
        loss_1 = F.cross_entropy(logits_per_aug1, targets)
        loss_2 = F.cross_entropy(logits_per_aug2, targets)
        loss = 1.0 * (loss_1 + loss_2) / 2
        # denoising
        h = self.encode(x_categ_enc_2, x_cont_enc_2)
        cat_outs = self.mlp1(h[:, : self.num_categories, :])
        con_outs = self.mlp2(h[:, self.num_categories :, :])
        con_outs = torch.cat(con_outs, dim=1)
        l2 = F.mse_loss(con_outs, x_cont)
        l1 = 0
        for j in range(self.num_categories):
            l1 += F.cross_entropy(cat_outs[j], x_categ[:, j])
        loss = loss + 0.5 * l1 + 1.5 * l2
        return loss, con_outs


def get_inputs():
    B, cats, ncon = 60, [5, 12, 3, 31, 2], 7
    x_categ = torch.stack([torch.randint(0, c, (B,)) for c in cats], dim=1)
    x_cont = torch.randn(B, ncon)
    cat_mask = (torch.rand(B, len(cats)) > 0.1).long()
    con_mask = (torch.rand(B, ncon) > 0.1).long()
    cat_corr = (torch.rand(B, len(cats)) > 0.3).long()
    con_corr = (torch.rand(B, ncon) > 0.3).long()
    return [x_categ, x_cont, cat_mask, con_mask, torch.randperm(B), torch.randperm(B), cat_corr, con_corr]


def get_init_inputs():
    return [[5, 12, 3, 31, 2], 7, 32, 2, 4]
