"""Training loops of others give the losses that eager gives, through fused graphs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import torchweld
from torchweld import integrations


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        ids = (torch.arange(6) * (i + 3)) % 11
        return {"input_ids": ids, "labels": ids}


def gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_embd=8, n_head=2, vocab_size=11, n_positions=8, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def trained(model, folder, prepare):
    """(losses, trainer) of four steps."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=2, logging_steps=1,
        learning_rate=1e-2, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = prepare(transformers.Trainer(model, arguments, train_dataset=Data()))
    trainer.train()
    return [log["loss"] for log in trainer.state.log_history if "loss" in log], trainer


def test_the_trainer_of_transformers(tmp_path):
    model = gpt2()
    eager, _ = trained(copy.deepcopy(model), tmp_path, lambda trainer: trainer)
    fused, trainer = trained(model, tmp_path, integrations.fuse_trainer)
    assert fused == pytest.approx(eager, rel=1e-3) and len(fused) == 4
    assert {r.kind for r in torchweld.records(trainer.model)} == {"forward", "backward"}
    trainer.save_model(str(tmp_path / "saved"))
    kept = type(model).from_pretrained(tmp_path / "saved")
    assert kept.config.architectures == ["GPT2LMHeadModel"]
    ours = torchweld.unfuse(trainer.model).state_dict()
    assert all(torch.equal(v, ours[k]) for k, v in kept.state_dict().items())


def test_accelerate():
    accelerate = pytest.importorskip("accelerate")
    model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(3, 4)
    before = torchweld.records()
    plugin = integrations.accelerate_plugin(numerics="eager")
    prepared = accelerate.Accelerator(cpu=True, dynamo_plugin=plugin).prepare(model)
    torch.testing.assert_close(prepared(x), model(x))
    assert torchweld.records()[-1] not in before  # the last graphs of the process


def test_without_accelerate(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "accelerate.utils", None)
    with pytest.raises(torchweld.TorchweldError, match="pip install accelerate"):
        integrations.accelerate_plugin()


def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4))
            self.losses = []

        def training_step(self, batch, index):
            return self.body(batch).square().mean()

        def on_train_batch_end(self, outputs, batch, index):
            self.losses.append(outputs["loss"].item())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fitted(model):
        trainer = lightning.Trainer(
            max_steps=3, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(model, torch.utils.data.DataLoader(torch.randn(12, 4), batch_size=4))
        return model.losses

    model, data_seed = Net(), torch.get_rng_state()
    twin = copy.deepcopy(model)
    eager = fitted(twin)
    torch.set_rng_state(data_seed)
    fused = integrations.fuse_lightning(model)
    assert fitted(fused) == pytest.approx(eager, rel=1e-4) and len(eager) == 3
    assert {r.kind for r in torchweld.records(fused)} == {"forward", "backward"}
