"""Every saved model says what it is."""

from pathlib import Path

import pytest
import yaml
from tests.integration.toy import build_config, build_model, build_rows, build_tokenizer, build_trainer, save_model

from pages import blocks
from semioffline.training.trainer import SemiOfflineTrainer

SAVED = {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "steps", "eval_steps": 3}


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_a_saved_model_has_a_filled_in_card(kind: str, tmp_path: Path) -> None:
    trainer = build_trainer(tmp_path, kind=kind, dev=build_rows(4), eval_metrics=["rouge1"], **SAVED)
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    card = (tmp_path / "model/README.md").read_text()
    assert card == (tmp_path / "checkpoint-3/README.md").read_text()
    about = yaml.safe_load(card.split("---\n")[1])
    assert about == {"library_name": "transformers", "tags": ["semioffline", "text-generation", "semi_offline"]}
    for line in ("reward | click_rate", "training rows | 24", "steps | 3 of 8 inputs", "num_samples | 4"):
        assert f"| {line} |" in card
    [logged] = [line for line in trainer.state.log_history if "eval_rouge1" in line]
    assert f"| rouge1 | {logged['eval_rouge1']:.4f} |" in card
    assert ("AutoModelForSeq2SeqLM" if kind == "bart" else "AutoModelForCausalLM") in card
    assert str(tmp_path) not in card  # no path of this machine


@pytest.mark.parametrize("kind", ["bart", "llama", "chat"])
def test_the_code_of_the_card_writes_a_text(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """As the model was trained: through the chat template after conversations, and without the prompt."""
    rows = build_rows(8)
    tokenizer = build_tokenizer("bart" if kind == "bart" else "llama")
    if kind == "chat":
        tokenizer.chat_template = "{% for m in messages %}{{ m.role }} : {{ m.content }} | {% endfor %}"
        rows = rows.map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})
    model = build_model("bart" if kind == "bart" else "llama")
    config = build_config(tmp_path, method="mft", max_steps=1)
    trainer = SemiOfflineTrainer(model, None, config, rows, processing_class=tokenizer)
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    [code] = blocks((tmp_path / "model/README.md").read_text(), "python")
    assert ("apply_chat_template" in code) == (kind == "chat")
    capsys.readouterr()
    found = {"folder": str(tmp_path / "model")}
    exec(code, found)
    assert capsys.readouterr().out.strip() == tokenizer.decode(found["output"], skip_special_tokens=True).strip()
    assert kind == "bart" or len(found["output"]) <= trainer.limits[1]


def test_the_model_of_a_run_folder_is_named_with_it(tmp_path: Path) -> None:
    trainer = build_trainer(tmp_path / "rl", model=str(save_model(tmp_path / "mft" / "model")), max_steps=1)
    trainer.create_model_card(model_name="x")
    assert "| initial checkpoint | mft/model |" in (tmp_path / "rl" / "README.md").read_text()


def test_the_hub_gets_the_same_card(tmp_path: Path) -> None:
    trainer = build_trainer(tmp_path, max_steps=1)
    trainer.train()
    trainer.create_model_card(model_name="x")
    card = (tmp_path / "README.md").read_text()
    assert "| method | semi_offline |" in card
    assert "## Results" not in card  # nothing was evaluated


def test_an_adapter_loads_as_one(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    trainer = build_trainer(tmp_path, peft_config=config, max_steps=1)
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    card = (tmp_path / "model/README.md").read_text()
    assert yaml.safe_load(card.split("---\n")[1])["library_name"] == "peft"
    assert "from peft import AutoPeftModelForSeq2SeqLM" in card


def test_names_of_users_stay_in_their_cell(tmp_path: Path) -> None:
    def reward(completions, **columns):
        return [1.0] * len(completions)

    reward.__name__ = "good <b>"
    trainer = build_trainer(tmp_path, reward=reward, max_steps=1)
    trainer.train()
    trainer.create_model_card()
    assert "| reward | good &lt;b&gt; |" in (tmp_path / "README.md").read_text()
