"""Reinforcement learning for text generation at the cost of one forward pass."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semioffline.config import SemiOfflineConfig
    from semioffline.policy.policy import Policy
    from semioffline.training.trainer import SemiOfflineTrainer

try:
    __version__ = version("semioffline")
except PackageNotFoundError:  # used from a source tree that is not installed
    __version__ = "dev"

_HOME = {"SemiOfflineConfig": "config", "SemiOfflineTrainer": "training.trainer", "Policy": "policy.policy"}
__all__ = ["Policy", "SemiOfflineConfig", "SemiOfflineTrainer", "__version__"]


def __getattr__(name: str) -> Any:
    """Importing the package does nothing slow: torch and transformers are loaded when a name is used."""
    if name not in _HOME:
        raise AttributeError(f"module 'semioffline' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"semioffline.{_HOME[name]}"), name)
