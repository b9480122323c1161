import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 24
image_size, patch_size = 224, 16
text_len, vocab_size = 64, 32000
width, heads, mlp_dim = 768, 12, 3072
vision_layers, text_layers = 6, 6


class SiglipAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim = embed_dim // num_heads
        self.scale = self.head_dim**-0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, hidden_states):
        bsz, q_len, _ = hidden_states.size()
        q = self.q_proj(hidden_states).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        attn_weights = torch.matmul(q, k.transpose(2, 3)) * self.scale
        attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(q.dtype)
        attn_output = torch.matmul(attn_weights, v)
        attn_output = attn_output.transpose(1, 2).contiguous().reshape(bsz, q_len, self.embed_dim)
        return self.out_proj(attn_output)


class SiglipMLP(nn.Module):
    def __init__(self, width, mlp_dim):
        super().__init__()
        self.fc1 = nn.Linear(width, mlp_dim)
        self.fc2 = nn.Linear(mlp_dim, width)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class SiglipEncoderLayer(nn.Module):
    def __init__(self, width, heads, mlp_dim):
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attn = SiglipAttention(width, heads)
        self.layer_norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = SiglipMLP(width, mlp_dim)

    def forward(self, hidden_states):
        residual = hidden_states
        hidden_states = self.self_attn(self.layer_norm1(hidden_states))
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.layer_norm2(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return residual + hidden_states


class AttentionPoolingHead(nn.Module):
    def __init__(self, width, heads, mlp_dim):
        super().__init__()
        self.probe = nn.Parameter(torch.randn(1, 1, width))
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.layernorm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = SiglipMLP(width, mlp_dim)

    def forward(self, hidden_state):
        probe = self.probe.repeat(hidden_state.shape[0], 1, 1)
        hidden_state = self.attention(probe, hidden_state, hidden_state)[0]
        hidden_state = hidden_state + self.mlp(self.layernorm(hidden_state))
        return hidden_state[:, 0]


class VisionTower(nn.Module):
    def __init__(self, image_size, patch_size, width, heads, mlp_dim, layers):
        super().__init__()
        self.num_patches = (image_size // patch_size) ** 2
        self.patch_embedding = nn.Conv2d(3, width, kernel_size=patch_size, stride=patch_size, padding="valid")
        self.position_embedding = nn.Embedding(self.num_patches, width)
        self.register_buffer("position_ids", torch.arange(self.num_patches).expand((1, -1)), persistent=False)
        self.layers = nn.ModuleList([SiglipEncoderLayer(width, heads, mlp_dim) for _ in range(layers)])
        self.post_layernorm = nn.LayerNorm(width, eps=1e-6)
        self.head = AttentionPoolingHead(width, heads, mlp_dim)

    def forward(self, pixel_values):
        x = self.patch_embedding(pixel_values.to(self.patch_embedding.weight.dtype))
        x = x.flatten(2).transpose(1, 2)
        x = x + self.position_embedding(self.position_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.post_layernorm(x))


class TextTower(nn.Module):
    def __init__(self, vocab_size, text_len, width, heads, mlp_dim, layers):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.position_embedding = nn.Parameter(torch.randn(text_len, width) * 0.01)
        self.layers = nn.ModuleList([
            nn.TransformerEncoderLayer(
                width, heads, mlp_dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        ])
        self.final_layer_norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, width)

    def forward(self, input_ids):
        x = self.token_embedding(input_ids)
        x = x + self.position_embedding[: input_ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        x = self.final_layer_norm(x)
        return self.head(x[:, -1, :])


class Model(nn.Module):
    """SigLIP: vision tower with attention pooling and text tower with last-token pooling,
    trained with the pairwise sigmoid loss."""

    def __init__(self, image_size, patch_size, vocab_size, text_len, width, heads, mlp_dim, vision_layers, text_layers):
        super().__init__()
        self.vision_model = VisionTower(image_size, patch_size, width, heads, mlp_dim, vision_layers)
        self.text_model = TextTower(vocab_size, text_len, width, heads, mlp_dim, text_layers)
        self.logit_scale = nn.Parameter(torch.log(torch.tensor([10.0])))
        self.logit_bias = nn.Parameter(torch.tensor([-10.0]))

    def forward(self, pixel_values, input_ids):
        image_embeds = self.vision_model(pixel_values)
        text_embeds = self.text_model(input_ids)
        image_embeds = image_embeds / image_embeds.norm(p=2, dim=-1, keepdim=True)
        text_embeds = text_embeds / text_embeds.norm(p=2, dim=-1, keepdim=True)
        logits_per_text = torch.matmul(text_embeds, image_embeds.t()) * self.logit_scale.exp() + self.logit_bias
        eye = torch.eye(logits_per_text.size(0), device=logits_per_text.device)
        m1_diag1 = -torch.ones_like(logits_per_text) + 2 * eye
        loglik = F.logsigmoid(m1_diag1 * logits_per_text)
        nll = -torch.sum(loglik, dim=-1)
        return nll.mean(), logits_per_text.t(), image_embeds, text_embeds


def get_inputs():
    return [torch.randn(batch_size, 3, image_size, image_size), torch.randint(0, vocab_size, (batch_size, text_len))]


def get_init_inputs():
    return [image_size, patch_size, vocab_size, text_len, width, heads, mlp_dim, vision_layers, text_layers]
