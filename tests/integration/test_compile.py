"""torch_compile: the layers of the trunk are compiled, and training is what it is without."""

from pathlib import Path
from typing import Any

import pytest
import torch
from toy import KINDS, build_trainer, build_uneven_rows, train, weights

from semioffline import SemiOfflineConfig
from semioffline.cuda import trunk
from semioffline.cuda.update import ReplayedUpdate
from semioffline.errors import UserError


def assert_close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-5)


def run(folder: Path, kind: str, **settings: Any) -> dict[str, torch.Tensor]:
    torch._dynamo.reset()
    trainer = train(folder, kind=kind, rows=build_uneven_rows(16), max_steps=2, **settings)
    assert type(trainer.model_wrapped).__name__ == "Policy"  # nobody compiled it as a whole
    return weights(trainer)


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_layers_train_as_plain_ones(kind: str, tmp_path: Path) -> None:
    """Batches of different lengths, two rows in a sequence. The backend traces as the default one does, and runs what
    it traced without generating code."""
    torch._dynamo.utils.counters.clear()
    compiled = run(tmp_path / "a", kind, torch_compile=True, torch_compile_backend="aot_eager", pad_to_multiple_of=8)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert not torch._dynamo.utils.counters["graph_break"]
    assert_close(compiled, run(tmp_path / "b", kind))


def test_a_run_without_it_after_one_with_it_is_plain(tmp_path: Path) -> None:
    run(tmp_path / "a", "llama", torch_compile=True, torch_compile_backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    run(tmp_path / "b", "llama")
    assert not torch._dynamo.utils.counters["stats"]


@pytest.mark.slow
def test_the_default_backend(tmp_path: Path) -> None:
    compiled = run(tmp_path / "a", "llama", torch_compile=True, pad_to_multiple_of=64)
    assert_close(compiled, run(tmp_path / "b", "llama"))


def test_graphs_say_what_they_cannot_do(tmp_path: Path) -> None:
    both = r"cuda_graphs cannot be combined with gradient_accumulation_steps=2.*gradient_checkpointing"
    with pytest.raises(UserError, match=both):
        SemiOfflineConfig(
            output_dir=str(tmp_path), cuda_graphs=True, gradient_accumulation_steps=2, gradient_checkpointing=True
        )
    with pytest.raises(UserError, match="cuda_graphs needs one CUDA device and one process, not cpu x 1"):
        train(tmp_path, cuda_graphs=True)


def test_clipping_and_the_optimizer_are_replayed_in_the_trainer(tmp_path: Path, monkeypatch) -> None:
    """With its schedule, and a recorder that runs what it is given; the trunk is not recorded here."""
    settings = {
        "optim": "adamw_torch_fused",
        "lr_scheduler_type": "linear",
        "learning_rate": 0.01,
        "adam_epsilon": 1e-3,
    }
    settings |= {"max_steps": 5, "max_grad_norm": 0.1}
    plain = train(tmp_path / "a", **settings)
    recordings = []

    def record(function: Any) -> Any:
        recordings.append(function)
        return function

    monkeypatch.setattr(ReplayedUpdate.__init__, "__defaults__", (record,))
    monkeypatch.setattr(trunk, "MOST", 0)
    trainer = build_trainer(tmp_path / "b", **settings)
    trainer.policy.use_cuda_graphs()
    monkeypatch.setattr(trainer.args, "cuda_graphs", True)
    trainer.train()
    assert len(recordings) == 2  # one of each: the gradients were moved to one place
    assert_close(weights(trainer), weights(plain))
    found, expected = (
        [log["grad_norm"] for log in t.state.log_history if "grad_norm" in log] for t in (trainer, plain)
    )
    assert found == pytest.approx(expected, rel=1e-3)
    rates = [[log["learning_rate"] for log in t.state.log_history if "learning_rate" in log] for t in (trainer, plain)]
    assert rates[0] == rates[1]
