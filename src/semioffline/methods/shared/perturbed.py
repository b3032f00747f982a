"""Attach, save and restore heads that change what a policy generates."""

from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from semioffline.errors import UserError
from semioffline.policy.heads import QHeads
from semioffline.policy.policy import Policy

FILE = "ilql_heads.safetensors"


def add_heads(policy: Policy, beta: float) -> QHeads:
    """Attach heads to the policy. From then on they change what it generates."""
    heads = policy.add_value_head(QHeads)
    if not isinstance(heads, QHeads):
        raise UserError("ilql cannot be combined with a method that has a critic: train only one of them")
    policy.generator.perturb(lambda states: beta * heads.advantages(states))
    return heads


def restore_heads(policy: Policy, folder: Path) -> None:
    """Restore the heads of a saved model, if the folder has any."""
    path = folder / FILE
    if path.is_file():
        with safe_open(path, framework="pt") as file:
            beta = float(file.metadata()["beta"])
        add_heads(policy, beta).load_state_dict(load_file(path))


def save_heads(heads: QHeads, beta: float, folder: Path) -> None:
    """Save the heads in the folder of a model. The model loads without them."""
    weights = {name: weight.cpu().contiguous() for name, weight in heads.state_dict().items()}
    save_file(weights, folder / FILE, {"beta": str(beta)})
