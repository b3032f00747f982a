"""Adapters that a policy refuses."""

import peft
import pytest
from torch import nn

from semioffline.errors import UserError
from semioffline.policy.policy import Policy

PROMPTS = {
    "PROMPT_TUNING": peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
    "PREFIX_TUNING": peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
    "P_TUNING": peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
}


@pytest.mark.parametrize("name", list(PROMPTS))
def test_adapters_with_virtual_tokens_are_refused(tiny_model, tiny_tokenizer, tmp_path, name):
    """As a config, as a model, and as a folder."""
    tokenizer = tiny_tokenizer("llama")
    model: nn.Module = tiny_model("llama", len(tokenizer))
    message = f"the adapter type {name} is not supported.*LoRA"
    with pytest.raises(UserError, match=message):
        Policy(model, tokenizer, peft_config=PROMPTS[name])
    adapted = peft.get_peft_model(model, PROMPTS[name])
    with pytest.raises(UserError, match=message):
        Policy(adapted, tokenizer)
    adapted.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=message):
        Policy.load(str(tmp_path), tokenizer)
