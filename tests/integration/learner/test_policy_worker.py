"""veRL's worker against plain transformers and a loss written by hand; exact continuation; exported weights."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from learner.policy_worker import PolicyWorker
from learner.rows import Batch, Row
from learner.settings import LearnerSettings
from tests.integration.learner.worlds import make_row, reference, token_logprobs

MakeWorker = Callable[..., PolicyWorker]
ADVANTAGES = [1.5, -0.5, -2.0, 0.75, 0.0, -1.25]


@pytest.fixture
def make_worker(tiny_folder: Path) -> MakeWorker:
    def make(**settings: Any) -> PolicyWorker:
        return PolicyWorker(LearnerSettings(**({"model": tiny_folder, "lr": 1e-2} | settings)))

    return make


def batch(model: torch.nn.Module, *, first_seed: int = 0, **row: Any) -> Batch:
    return Batch([make_row(model, first_seed + i, **row) for i in range(len(ADVANTAGES))], ADVANTAGES)


def gradients(worker: PolicyWorker) -> dict[str, torch.Tensor]:
    """Filled with the gradients that the next optimizer step sees, before they are clipped."""
    engine, found = worker._worker.engine, {}
    step = engine.optimizer_step

    def spy() -> float:
        found.update({name: p.grad.full_tensor().clone() for name, p in engine.module.named_parameters()})
        return step()

    engine.optimizer_step = spy
    return found


def loss_by_hand(logprob: torch.Tensor, row: Row, advantage: float, correction: str) -> torch.Tensor:
    """Sum over the trained tokens of PPO's dual-clip loss (0.2, 0.28, 3), weighted by min(π_old / π_rollout, 2)."""
    total = torch.zeros(())
    for new, recorded, trained in zip(logprob, row.logprobs.tolist(), row.loss_mask, strict=True):
        if not trained:
            continue
        old = new.detach() if correction == "token_is" else torch.tensor(recorded)
        weight = min(float(torch.exp(old - recorded)), 2.0) if correction == "token_is" else 1.0
        ratio = torch.exp(new - old)
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.28))
        if advantage < 0:
            loss = torch.minimum(loss, torch.tensor(-advantage * 3.0))
        total = total + weight * loss
    return total


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_agree_with_plain_transformers(make_worker: MakeWorker, tiny_folder: Path, temperature: float) -> None:
    """Packed rows against each row alone: no token sees another row, positions start anew."""
    model = reference(tiny_folder)
    rows = batch(model)
    for row, got in zip(rows.rows, make_worker(temperature=temperature).logprobs(rows).unbind(), strict=True):
        expected = token_logprobs(model, row.token_ids, temperature)[row.prompt_length :]
        assert torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("correction", ["token_is", "bypass"])
@pytest.mark.parametrize("micro_batch_tokens", [4096, 16])
def test_loss_and_gradient_agree_with_those_by_hand(
    make_worker: MakeWorker, tiny_folder: Path, correction: str, micro_batch_tokens: int
) -> None:
    """Recorded log-probabilities are up to 1.5 off: weights are truncated, ratios clipped on all sides."""
    model = reference(tiny_folder)
    rows = batch(model, noise=1.5, temperature=0.7)
    worker = make_worker(correction=correction, temperature=0.7, micro_batch_tokens=micro_batch_tokens)
    found = gradients(worker)
    metrics = worker.update(rows)

    loss = torch.zeros(())
    for row, advantage in zip(rows.rows, rows.advantages, strict=True):
        loss = loss + loss_by_hand(token_logprobs(model, row.token_ids, 0.7), row, advantage, correction)
    loss = loss / rows.trained_tokens
    loss.backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    norm = float(torch.sqrt(sum(((g**2).sum() for g in expected.values()), torch.zeros(()))))

    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, atol=1e-5), name
    assert norm > 0.1, "nothing was compared"
    if correction == "bypass":
        assert metrics["clip_fraction"] > 0


def test_delta_measures_the_gap_to_the_recorded_logprobs(make_worker: MakeWorker, tiny_folder: Path) -> None:
    model = reference(tiny_folder)
    exact = batch(model, temperature=0.7)
    metrics = make_worker(temperature=0.7).update(exact)
    assert metrics["delta_max"] < 1e-5
    assert metrics["is_weight_mean"] == pytest.approx(1.0, abs=1e-5)
    off = Batch([replace(row, logprobs=row.logprobs - 0.25) for row in exact.rows], ADVANTAGES)
    metrics = make_worker(temperature=0.7).update(off)
    assert metrics["delta_mean"] == pytest.approx(0.25, abs=1e-5)
    assert metrics["rollout_kl_mean"] == pytest.approx(-0.25, abs=1e-5)


def test_wrong_temperature_shows_in_delta(make_worker: MakeWorker, tiny_folder: Path) -> None:
    sampled_at_07 = batch(reference(tiny_folder), temperature=0.7)
    assert make_worker(temperature=1.0).update(sampled_at_07)["delta_mean"] > 0.05


def test_more_updates_a_batch_keep_the_first_policy_as_the_old_one(make_worker: MakeWorker, tiny_folder: Path) -> None:
    """After one step of lr 1e-2 the ratio is no longer 1: veRL's mean of -log ratio is 0 in the first pass only."""
    rows = batch(reference(tiny_folder))
    assert make_worker().update(rows)["update_kl"] == 0.0
    metrics = make_worker(updates_per_batch=2).update(rows)
    assert abs(metrics["update_kl"]) > 1e-4
    assert metrics["delta_max"] < 1e-5


def test_update_raises_what_was_rewarded_and_lowers_what_was_not(make_worker: MakeWorker, tiny_folder: Path) -> None:
    rows = batch(reference(tiny_folder))
    worker = make_worker(lr=1e-3)

    def means() -> list[float]:
        return [float(row.mean()) for row in worker.logprobs(rows).unbind()]

    before = means()
    for _ in range(5):
        worker.update(rows)
    gains = [after - b for after, b in zip(means(), before, strict=True)]
    assert min(gains[0], gains[3]) > 0 > max(gains[1], gains[2], gains[5])


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_reloaded_checkpoint_makes_the_same_next_step_bit_for_bit(
    make_worker: MakeWorker, tiny_folder: Path, tmp_path: Path, lora_rank: int
) -> None:
    model = reference(tiny_folder)
    first, second = batch(model), batch(model, first_seed=100)
    worker = make_worker(lora_rank=lora_rank, seed=1)
    worker.update(first)
    worker.save(tmp_path)
    metrics = worker.update(second)

    other = make_worker(lora_rank=lora_rank, seed=2)
    other.load(tmp_path)
    assert other.update(second) == metrics
    there, here = worker._worker.engine.module.state_dict(), other._worker.engine.module.state_dict()
    assert there.keys() == here.keys()
    for name, tensor in there.items():
        assert torch.equal(tensor.full_tensor(), here[name].full_tensor()), name


def test_lora_checkpoint_holds_adapters_only(make_worker: MakeWorker, tmp_path: Path) -> None:
    make_worker(lora_rank=4).save(tmp_path)
    saved = torch.load(tmp_path / "model_world_size_1_rank_0.pt", weights_only=False)
    assert saved
    assert all("lora_" in name for name in saved)


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_exported_folder_is_the_policy_in_bf16(
    make_worker: MakeWorker, tiny_folder: Path, tmp_path: Path, lora_rank: int
) -> None:
    rows = batch(reference(tiny_folder))
    worker = make_worker(lora_rank=lora_rank, lr=1e-3)
    for _ in range(3):
        worker.update(rows)
    before = [row.clone() for row in worker.logprobs(rows).unbind()]
    worker.export(tmp_path)
    assert all(map(torch.equal, before, worker.logprobs(rows).unbind())), "exporting changed the policy"

    exported, base = load_file(tmp_path / "model.safetensors"), load_file(tiny_folder / "model.safetensors")
    assert exported.keys() == base.keys()
    assert {tensor.dtype for tensor in exported.values()} == {torch.bfloat16}
    if not lora_rank:
        trained = worker._worker.engine.module.state_dict()
        assert all(torch.equal(tensor, trained[name].full_tensor().bfloat16()) for name, tensor in exported.items())
    again = reference(tmp_path)
    for row, now in zip(rows.rows, before, strict=True):
        assert torch.allclose(token_logprobs(again, row.token_ids)[row.prompt_length :], now, atol=0.03)
    assert not all(map(torch.allclose, before, make_worker().logprobs(rows).unbind())), "nothing was trained"
    names = {path.name for path in tiny_folder.iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    assert (tmp_path / "tokenizer.json").read_bytes() == (tiny_folder / "tokenizer.json").read_bytes()


def test_tied_embeddings_are_exported_once(make_worker: MakeWorker, tiny_folder: Path, tmp_path: Path) -> None:
    base, out = tmp_path / "tied", tmp_path / "out"
    shutil.copytree(tiny_folder, base)
    config = AutoConfig.from_pretrained(tiny_folder)
    config.tie_word_embeddings = True
    AutoModelForCausalLM.from_config(config).save_pretrained(base)
    out.mkdir()
    worker = make_worker(model=base)
    rows = batch(reference(base))
    worker.update(rows)
    worker.export(out)
    assert "lm_head.weight" not in load_file(out / "model.safetensors")
    again = reference(out)
    for row, now in zip(rows.rows, worker.logprobs(rows).unbind(), strict=True):
        assert torch.allclose(token_logprobs(again, row.token_ids)[row.prompt_length :], now, atol=0.03)
