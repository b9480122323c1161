import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Encoder(nn.Module):
    def __init__(self, input_dim, emb_dim, enc_hid, dec_hid):
        super().__init__()
        self.embedding = nn.Embedding(input_dim, emb_dim, padding_idx=1)
        self.rnn = nn.GRU(emb_dim, enc_hid, bidirectional=True)
        self.fc = nn.Linear(enc_hid * 2, dec_hid)

    def forward(self, src, src_len):
        # src = [src len, batch size]
        embedded = self.embedding(src)
        packed = pack_padded_sequence(embedded, src_len, enforce_sorted=False)
        packed_outputs, hidden = self.rnn(packed)
        outputs, _ = pad_packed_sequence(packed_outputs, total_length=src.shape[0])
        hidden = torch.tanh(self.fc(torch.cat((hidden[-2], hidden[-1]), dim=1)))
        return outputs, hidden


class Attention(nn.Module):
    """Additive (Bahdanau) attention."""

    def __init__(self, enc_hid, dec_hid):
        super().__init__()
        self.attn = nn.Linear((enc_hid * 2) + dec_hid, dec_hid)
        self.v = nn.Linear(dec_hid, 1, bias=False)

    def forward(self, hidden, encoder_outputs, mask):
        src_len = encoder_outputs.shape[0]
        hidden = hidden.unsqueeze(1).repeat(1, src_len, 1)
        encoder_outputs = encoder_outputs.permute(1, 0, 2)
        energy = torch.tanh(self.attn(torch.cat((hidden, encoder_outputs), dim=2)))
        attention = self.v(energy).squeeze(2)
        attention = attention.masked_fill(mask == 0, -1e10)
        return F.softmax(attention, dim=1)


class Decoder(nn.Module):
    def __init__(self, output_dim, emb_dim, enc_hid, dec_hid, attention):
        super().__init__()
        self.output_dim = output_dim
        self.attention = attention
        self.embedding = nn.Embedding(output_dim, emb_dim)
        self.rnn = nn.GRU((enc_hid * 2) + emb_dim, dec_hid)
        self.fc_out = nn.Linear((enc_hid * 2) + dec_hid + emb_dim, output_dim)

    def forward(self, input, hidden, encoder_outputs, mask):
        embedded = self.embedding(input.unsqueeze(0))
        a = self.attention(hidden, encoder_outputs, mask).unsqueeze(1)
        weighted = torch.bmm(a, encoder_outputs.permute(1, 0, 2)).permute(1, 0, 2)
        output, hidden = self.rnn(torch.cat((embedded, weighted), dim=2), hidden.unsqueeze(0))
        embedded = embedded.squeeze(0)
        output = output.squeeze(0)
        weighted = weighted.squeeze(0)
        prediction = self.fc_out(torch.cat((output, weighted, embedded), dim=1))
        return prediction, hidden.squeeze(0), a.squeeze(1)


class Model(nn.Module):
    """Seq2seq translation: packed bidirectional GRU encoder and a 20-step GRU
    decoder loop with additive attention and teacher forcing."""

    def __init__(self, src_vocab, trg_vocab, emb_dim, enc_hid, dec_hid, src_pad_idx=1, trg_pad_idx=1):
        super().__init__()
        self.encoder = Encoder(src_vocab, emb_dim, enc_hid, dec_hid)
        self.decoder = Decoder(trg_vocab, emb_dim, enc_hid, dec_hid, Attention(enc_hid, dec_hid))
        self.src_pad_idx = src_pad_idx
        self.trg_pad_idx = trg_pad_idx
        for name, param in self.named_parameters():
            if "weight" in name:
                nn.init.normal_(param.data, mean=0, std=0.05)
            else:
                nn.init.constant_(param.data, 0)

    def create_mask(self, src):
        return (src != self.src_pad_idx).permute(1, 0)

    def forward(self, src, src_len, trg):
        # trg = [trg len, batch size], trg len = 21 -> 20 decoding steps
        batch_size = src.shape[1]
        trg_len = trg.shape[0]
        outputs = torch.zeros(trg_len, batch_size, self.decoder.output_dim, device=src.device)
        attentions = torch.zeros(trg_len, batch_size, src.shape[0], device=src.device)
        encoder_outputs, hidden = self.encoder(src, src_len)
        mask = self.create_mask(src)
        input = trg[0, :]
        for t in range(1, trg_len):
            output, hidden, a = self.decoder(input, hidden, encoder_outputs, mask)
            outputs[t] = output
            attentions[t] = a
            input = trg[t]
        loss = F.cross_entropy(
            outputs[1:].view(-1, outputs.shape[-1]), trg[1:].reshape(-1), ignore_index=self.trg_pad_idx
        )
        return loss, outputs, attentions


def get_inputs():
    g = torch.Generator().manual_seed(14)
    S, T, B = 29, 21, 13
    src = torch.randint(2, 1207, (S, B), generator=g)
    src_len = torch.randint(9, S + 1, (B,), generator=g)
    src_len[4] = S
    src[torch.arange(S)[:, None] >= src_len[None, :]] = 1
    trg = torch.randint(2, 1013, (T, B), generator=g)
    trg_len = torch.randint(7, T + 1, (B,), generator=g)
    trg[torch.arange(T)[:, None] >= trg_len[None, :]] = 1
    return [src, src_len, trg]


def get_init_inputs():
    return [1207, 1013, 96, 112, 144]
