"""Reinforcement learning for text generation at the cost of one forward pass."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semioffline.config import MethodConfig
    from semioffline.evaluation.explanation import explain
    from semioffline.methods.ablations import AblationsConfig
    from semioffline.methods.actor_critic import ActorCriticConfig
    from semioffline.methods.avg import AvgConfig
    from semioffline.methods.best_of_n import BestOfNConfig
    from semioffline.methods.brio import BrioConfig
    from semioffline.methods.dpo import DPOConfig
    from semioffline.methods.erpo import ERPOConfig
    from semioffline.methods.ft import FTConfig
    from semioffline.methods.gold import GoldConfig
    from semioffline.methods.grpo import GRPOConfig
    from semioffline.methods.ilql import ILQLConfig
    from semioffline.methods.mft import MFTConfig
    from semioffline.methods.ppo import PPOConfig
    from semioffline.methods.raml import RAMLConfig
    from semioffline.methods.scheduled_sampling import ScheduledSamplingConfig
    from semioffline.methods.self_critic import SelfCriticConfig
    from semioffline.methods.semi_offline import SemiOfflineConfig
    from semioffline.methods.spg import SPGConfig
    from semioffline.policy.policy import Policy
    from semioffline.report.job import run
    from semioffline.training.trainer import SemiOfflineTrainer

try:
    __version__ = version("semioffline")
except PackageNotFoundError:  # used from a source tree that is not installed
    __version__ = "dev"

_HOME = {
    "AblationsConfig": "methods.ablations",
    "ActorCriticConfig": "methods.actor_critic",
    "AvgConfig": "methods.avg",
    "BestOfNConfig": "methods.best_of_n",
    "BrioConfig": "methods.brio",
    "DPOConfig": "methods.dpo",
    "ERPOConfig": "methods.erpo",
    "FTConfig": "methods.ft",
    "GoldConfig": "methods.gold",
    "GRPOConfig": "methods.grpo",
    "ILQLConfig": "methods.ilql",
    "MFTConfig": "methods.mft",
    "MethodConfig": "config",
    "Policy": "policy.policy",
    "RAMLConfig": "methods.raml",
    "SPGConfig": "methods.spg",
    "ScheduledSamplingConfig": "methods.scheduled_sampling",
    "PPOConfig": "methods.ppo",
    "SelfCriticConfig": "methods.self_critic",
    "SemiOfflineConfig": "methods.semi_offline",
    "SemiOfflineTrainer": "training.trainer",
    "explain": "evaluation.explanation",
    "run": "report.job",
}
__all__ = [
    "AblationsConfig",
    "ActorCriticConfig",
    "AvgConfig",
    "BestOfNConfig",
    "BrioConfig",
    "DPOConfig",
    "ERPOConfig",
    "FTConfig",
    "GRPOConfig",
    "GoldConfig",
    "ILQLConfig",
    "MFTConfig",
    "MethodConfig",
    "PPOConfig",
    "Policy",
    "RAMLConfig",
    "SPGConfig",
    "ScheduledSamplingConfig",
    "SelfCriticConfig",
    "SemiOfflineConfig",
    "SemiOfflineTrainer",
    "__version__",
    "explain",
    "run",
]


def __getattr__(name: str) -> Any:
    """Import torch and transformers only when a name is first used, so that importing the package is fast."""
    if name not in _HOME:
        raise AttributeError(f"module 'semioffline' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"semioffline.{_HOME[name]}"), name)
