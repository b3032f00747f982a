"""A model as the reward: learn from texts that an editor liked or not, then train the writer for what it learned.

Any sequence-classification model will do, also by name: reward_funcs="model:NAME?label=liked". It is only an opinion
about the editor: what the editor really likes is printed beside its score.
"""

import torch
from start import parser, run
from transformers import BertConfig, BertForSequenceClassification

from semioffline.rewards.model import ModelReward
from semioffline.tasks import ads

parser.add_argument("--judge_steps", type=int, default=100, help="steps of training the judge")
WARM = {"love", "welcome", "cosy", "charming", "visit", "enquire"}


def editor(completions, **columns):
    """The truth, which the judge has to guess: two warm words at least."""
    return [float(len(WARM & set(text.split())) >= 2) for text in completions]


def learn_judge(steps):
    """A small classifier, fitted to advertisements that the editor has marked."""
    tokenizer = ads.build_tokenizer()
    shape = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128}
    shape |= {"max_position_embeddings": 64, "initializer_range": 0.1}
    torch.manual_seed(0)
    labels = {"id2label": {0: "disliked", 1: "liked"}, "label2id": {"disliked": 0, "liked": 1}}
    judge = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), **shape, **labels))
    optimizer = torch.optim.AdamW(judge.parameters(), lr=2e-3)
    texts = ads.build({"marked": steps * 64}, seed=1)["marked"]["completion"][:]
    for step in range(steps):
        part = texts[step * 64 : (step + 1) * 64]
        inputs = tokenizer(part, padding=True, return_tensors="pt")
        loss = judge(**inputs, labels=torch.tensor(editor(part)).long()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"judge: cross-entropy {loss.item():.3f}")
    return ModelReward(judge, tokenizer, label="liked")


if __name__ == "__main__":
    run([learn_judge(parser.parse_args().judge_steps), editor], reward_weights=[1.0, 0.0], watch=("facts_right",))
