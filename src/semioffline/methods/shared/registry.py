"""Methods by name. Each file of the package `methods` is a method, and the file's name is the method's."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache

from semioffline import methods
from semioffline.config import MethodConfig, setting_names
from semioffline.errors import UserError, short, unknown
from semioffline.methods.shared.base import BaseMethod
from semioffline.methods.shared.combined import Combined
from semioffline.methods.shared.kl_penalty import with_penalty


def method_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(methods.__path__) if not module.ispkg)


def _class_of(name: str) -> type[BaseMethod]:
    return importlib.import_module(f"{methods.__name__}.{name}").Method


def check_method(name: str) -> list[str]:
    """Return the methods that a name means: one, or two for `one+another`. An unknown name is an error."""
    names = [part.strip() for part in name.split("+")]
    for part in names:
        if part not in method_names():
            raise unknown("method", part, method_names())
    if len(names) > 2:
        raise UserError(f"method '{name}' combines {len(names)} methods, but at most two can be combined")
    if len(set(names)) < len(names):
        raise UserError(f"method '{name}' names the same method twice: give two different ones, or one")
    plain = [part for part in names if part in ("ft", "mft")]
    if plain and len(names) == 2 and all(_class_of(part).has_mle for part in names):
        other = "two MLE terms" if len(plain) == 2 else "an MLE term that the other method has already"
        free = ", ".join(part for part in method_names() if not _class_of(part).has_mle)
        raise UserError(f"method '{name}' would combine {other}: ft and mft can only be combined with {free}")
    return names


@cache
def config_class(name: str) -> type[MethodConfig]:
    """Return the class of a method's settings; for `one+another`, a class with the fields of both."""
    names = check_method(name)
    classes = [_class_of(part).config_class for part in names]
    if len(classes) == 1:
        return classes[0]
    ranks = "brio" in names

    def problems(self: MethodConfig) -> list[str]:
        found = super(combined, self).problems()  # type: ignore[misc]
        if getattr(self, "rl_ratio", None) is not None and not ranks:
            found.append(
                f"rl_ratio can set the weight of one RL term and of brio's ranking term, but not for {name}: set "
                "rl_weight"
            )
        return found

    title = "".join(part.title().replace("_", "") for part in names) + "Config"
    namespace = {"method": "+".join(names), "problems": problems, "__doc__": f"Settings of `{name}`."}
    namespace["default_rl_ratio"] = None  # it would replace brio's own weight, too
    combined: type[MethodConfig] = dataclass(type(title, tuple(classes), namespace))
    return combined


def load_method(config: MethodConfig, own: BaseMethod | None = None) -> BaseMethod:
    """Return the method for these settings; for `one+another`, one that runs both on every batch. own: a method object
    of the user's, returned instead."""
    if not isinstance(config, MethodConfig):
        raise UserError(f"args={short(repr(config))} must be a MethodConfig, such as SemiOfflineConfig(output_dir=...)")
    if own is not None and not isinstance(own, BaseMethod):
        raise UserError(f"method={short(repr(own))} must be a BaseMethod object; args select a method by their class")
    if own is not None:
        return own
    names = check_method(config.method)
    found = {part: _class_of(part)(config) for part in names}
    return with_penalty(Combined(config, found) if len(found) > 1 else next(iter(found.values())))


def readers(setting: str) -> list[str]:
    """Return the methods that read a setting."""
    return [name for name in method_names() if setting in setting_names(config_class(name))]
