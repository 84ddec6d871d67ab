from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from small_policies import SMALL

from agentbench_rl.config import TinyModel
from agentbench_rl.policies.loading import load_policy, load_tokenizer, save_policy
from agentbench_rl.policies.tiny import build_policy
from agentbench_rl.types import AgentRLError


def test_the_seed_alone_decides_the_weights_and_leaves_the_global_generator_alone(tokenizer: Any) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, two, other = (build_policy(SMALL, tokenizer, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    pairs = list(zip(one.parameters(), two.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(one.model.embed_tokens.weight, other.model.embed_tokens.weight)
    assert one.lm_head.weight is one.model.embed_tokens.weight
    assert one.lm_head.weight.shape[0] == len(tokenizer)


def test_the_spread_of_the_first_weights_is_as_set(tokenizer: Any) -> None:
    wide = build_policy(SMALL.model_copy(update={"initializer_range": 0.5}), tokenizer, 0)
    assert float(wide.model.embed_tokens.weight.detach().std()) == pytest.approx(0.5, rel=0.05)


def test_sizes_that_do_not_divide_are_refused(tokenizer: Any) -> None:
    with pytest.raises(AgentRLError, match="multiple of heads 3"):
        build_policy(TinyModel(heads=3), tokenizer, 0)


def test_heads_of_odd_size_are_refused(tokenizer: Any) -> None:
    with pytest.raises(AgentRLError, match=r"hidden_size 36 / heads 4 .*even"):
        build_policy(TinyModel(hidden_size=36, heads=4), tokenizer, 0)


def test_saving_what_was_loaded_elsewhere_gives_the_same_bytes(policy: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(policy, tmp_path / "moved")
    save_policy(load_policy(moved), load_tokenizer(moved), tmp_path / "again")
    files = {path.name: path.read_bytes() for path in policy.iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == files


@pytest.mark.parametrize(
    ("name", "what"), [("model.safetensors", "weights"), ("config.json", "config"), ("tokenizer.json", "tokenizer")]
)
def test_an_incomplete_directory_is_named_with_what_is_missing(
    policy: Path, tmp_path: Path, name: str, what: str
) -> None:
    copy = shutil.copytree(policy, tmp_path / "copy")
    (copy / name).unlink()
    with pytest.raises(AgentRLError, match=f"{copy} has no {what}"):
        load_tokenizer(copy) if what == "tokenizer" else load_policy(copy)


def test_truncated_weights_are_refused(policy: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(policy, tmp_path / "copy")
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(AgentRLError, match=r"model\.safetensors is damaged or truncated"):
        load_policy(copy)


def test_a_policy_of_many_files_of_which_one_is_missing_is_refused(policy: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    load_policy(policy).save_pretrained(copy, max_shard_size="20KB")
    files = sorted(copy.glob("*.safetensors"))
    assert len(files) > 1
    load_policy(copy)
    files[0].unlink()
    with pytest.raises(AgentRLError, match=files[0].name):
        load_policy(copy)


def test_weights_that_lack_a_tensor_are_never_filled_with_random_numbers(policy: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(policy, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(AgentRLError, match=r"model\.norm\.weight"):
        load_policy(copy)


def test_a_full_disk_is_an_error_of_the_operating_system(policy: Path, small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space left on device") as caught:
        save_policy(load_policy(policy), load_tokenizer(policy), small_disk)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(small_disk))


def test_a_tokenizer_that_meets_a_full_disk_raises_the_same(tmp_path: Path) -> None:
    class Saved:
        def save_pretrained(self, directory: Path) -> None: ...

    class Full:
        def save_pretrained(self, directory: Path) -> None:
            raise Exception("No space left on device (os error 28)")

    with pytest.raises(OSError, match="No space left on device") as caught:
        save_policy(Saved(), Full(), tmp_path)
    assert caught.value.errno == errno.ENOSPC


def test_another_fault_while_saving_stays_what_it_is(tmp_path: Path) -> None:
    class Broken:
        def save_pretrained(self, directory: Path) -> None:
            raise RuntimeError("shared tensors")

    with pytest.raises(RuntimeError, match="shared tensors"):
        save_policy(Broken(), Broken(), tmp_path)


def test_a_missing_directory_is_not_mistaken_for_a_hub_name(tmp_path: Path) -> None:
    for load in (load_policy, load_tokenizer):
        with pytest.raises(AgentRLError, match="does not exist"):
            load(tmp_path / "absent")


def test_a_hub_name_that_cannot_be_fetched_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for load in (load_policy, load_tokenizer):
        with pytest.raises(AgentRLError, match=r"nobody/no-such-model.*network"):
            load("nobody/no-such-model")


def test_a_gpu_that_is_not_there_is_explained(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(AgentRLError, match=r"device: cuda.*no usable GPU"):
        load_policy(policy, device="cuda")
