import torch
import torch.nn as nn


class CRF(nn.Module):
    def __init__(self, num_tags):
        super().__init__()
        self.num_tags = num_tags
        self.start_transitions = nn.Parameter(torch.empty(num_tags).uniform_(-0.1, 0.1))
        self.end_transitions = nn.Parameter(torch.empty(num_tags).uniform_(-0.1, 0.1))
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags).uniform_(-0.1, 0.1))

    def _compute_score(self, emissions, tags, mask):
        seq_length, batch_size = tags.shape
        ar = torch.arange(batch_size, device=tags.device)
        mask = mask.type_as(emissions)
        score = self.start_transitions[tags[0]]
        score = score + emissions[0, ar, tags[0]]
        for i in range(1, seq_length):
            score = score + self.transitions[tags[i - 1], tags[i]] * mask[i]
            score = score + emissions[i, ar, tags[i]] * mask[i]
        seq_ends = mask.long().sum(dim=0) - 1
        last_tags = tags[seq_ends, ar]
        return score + self.end_transitions[last_tags]

    def _compute_normalizer(self, emissions, mask):
        seq_length = emissions.size(0)
        score = self.start_transitions + emissions[0]
        for i in range(1, seq_length):
            broadcast_score = score.unsqueeze(2)
            broadcast_emissions = emissions[i].unsqueeze(1)
            next_score = broadcast_score + self.transitions + broadcast_emissions
            next_score = torch.logsumexp(next_score, dim=1)
            score = torch.where(mask[i].unsqueeze(1), next_score, score)
        score = score + self.end_transitions
        return torch.logsumexp(score, dim=1)

    def viterbi(self, emissions, mask):
        seq_length = emissions.size(0)
        score = self.start_transitions + emissions[0]
        for i in range(1, seq_length):
            next_score = score.unsqueeze(2) + self.transitions + emissions[i].unsqueeze(1)
            next_score, _ = next_score.max(dim=1)
            score = torch.where(mask[i].unsqueeze(1), next_score, score)
        return (score + self.end_transitions).max(dim=1)[0]

    def forward(self, emissions, tags, mask):
        numerator = self._compute_score(emissions, tags, mask)
        denominator = self._compute_normalizer(emissions, mask)
        return numerator - denominator


class Model(nn.Module):
    """BiLSTM-CRF tagger: negative log-likelihood and the Viterbi best score."""

    def __init__(self, vocab, emb, hidden, num_tags):
        super().__init__()
        self.embed = nn.Embedding(vocab, emb, padding_idx=0)
        self.lstm = nn.LSTM(emb, hidden // 2, num_layers=1, bidirectional=True, batch_first=True)
        self.hidden2tag = nn.Linear(hidden, num_tags)
        self.crf = CRF(num_tags)

    def forward(self, words, tags, lengths):
        T = words.size(1)
        mask = torch.arange(T, device=words.device).unsqueeze(0) < lengths.unsqueeze(1)
        x = self.embed(words)
        h, _ = self.lstm(x)
        emissions = self.hidden2tag(h).transpose(0, 1)
        mask_t = mask.transpose(0, 1)
        llh = self.crf(emissions, tags.transpose(0, 1), mask_t)
        best = self.crf.viterbi(emissions, mask_t)
        return -llh.sum() / mask.sum(), best


def get_inputs():
    return [torch.randint(1, 5000, (16, 40)), torch.randint(0, 18, (16, 40)), torch.randint(10, 41, (16,))]


def get_init_inputs():
    return [5000, 100, 256, 18]
