"""Read recipes: settings in a YAML file, given by its path or by the name of a recipe in the package.

A recipe is read before torch is loaded, which takes seconds. `semioffline recipes` lists the recipes in the package.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from semioffline.errors import UserError, told_in_one_line, unknown
from semioffline.printing import say
from semioffline.rewards.registry import FAMILIES
from semioffline.storage.untrusted import check_settings, parse_settings, parse_yaml

Recipe = dict[str, object]
"""Settings by name, as YAML has them."""
SHIPPED = Path(__file__).parents[1] / "recipes"
LARGEST = 100_000
"""Maximum size of a recipe in bytes."""
CODE = ("reward", "metrics", "eval_metrics", "mask_where")
"""Settings that may name Python code to run: file.py:function or module:function (mask_where: only the former)."""
NOT_CODE = (*FAMILIES, "length_penalty")


def take_recipe(argv: list[str]) -> tuple[Recipe, list[str]]:
    """Return the settings of `--config recipe.yaml`, and the other words of the command line."""
    with told_in_one_line(ValueError, before="the command line: "):
        check_settings(argv)
    argv = [part for word in argv for part in (word.split("=", 1) if word.startswith("--config=") else [word])]
    if "--config" not in argv:
        return {}, argv
    at = argv.index("--config")
    if at + 1 == len(argv) or argv[at + 1].startswith("--") or not argv[at + 1].strip():
        raise UserError("--config needs the name or the path of a recipe; semioffline recipes lists the names")
    if "--config" in argv[at + 1 :]:
        raise UserError("--config is given twice: a command takes one recipe")
    return read_recipe(find_recipe(argv[at + 1])), argv[:at] + argv[at + 2 :]


def recipe_names() -> list[str]:
    """Return the names of the recipes in the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def find_recipe(given: str) -> Path:
    """Return the file that `--config` names: a path, or the name of a recipe in the package. A path has precedence."""
    path = Path(given)
    if os.path.lexists(path):  # also what cannot be opened: reading it says why
        return path
    if given in recipe_names():
        return SHIPPED / f"{given}.yaml"
    if path.name == given and not path.suffix:
        raise unknown("recipe", given, recipe_names())
    shipped = f": the recipe in the package is --config {path.stem}" if path.stem in recipe_names() else ""
    raise UserError(f"cannot read the recipe {given}: No such file or directory{shipped}")


def run(argv: list[str]) -> None:
    """Print the recipes in the package, each with the first line of its file."""
    if argv and argv[0] not in ("-h", "--help"):
        raise UserError(f"semioffline recipes takes no options, but got '{argv[0]}'")
    say("usage: semioffline COMMAND --config NAME [--setting value ...]\n")
    width = max(map(len, recipe_names()))
    for name in recipe_names():
        with open(SHIPPED / f"{name}.yaml", encoding="utf-8") as file:
            say(f"  {name:<{width}}  {file.readline().removeprefix('#').strip()}")
    say(f"\nThey are in {SHIPPED}: to change one, copy it and give the file, or override it by flags.")


def read_recipe(path: Path) -> Recipe:
    """Return the settings in a recipe file. Paths of Python files are relative to its folder."""
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise UserError(f"the recipe {path} is larger than {LARGEST // 1000} kB: it must contain settings only")
        recipe = parse_yaml(content)
    except OSError as error:
        raise UserError(f"cannot read the recipe {path}: {error.strerror}") from error
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path} is not YAML that holds settings: {error}") from error
    if not isinstance(recipe, dict):
        raise UserError(f"{path} must contain one setting per line, as NAME: VALUE")
    if isinstance(recipe.get("settings"), str):
        recipe["settings"] = parse_settings(recipe["settings"])
    return _resolved(recipe, path.parent)


def announce_code(recipe: Recipe, words: list[str]) -> None:
    """Print to stderr which Python code a recipe names, before it runs. words: the rest of the command line."""
    given = {word.split("=")[0].lstrip("-") for word in words if word.startswith("--")}
    for code in dict.fromkeys(_code_in({key: value for key, value in recipe.items() if key not in given})):
        place, _, name = code.rpartition(":")
        where = Path(place).resolve() if _is_in_file(code) else f"the module {place}"
        say(f"semioffline: the recipe runs Python code: {name!r} of {str(where)!r}", error=True)


def _resolved(recipe: Recipe, folder: Path) -> Recipe:
    """Return the settings, with the paths of Python files relative to `folder`."""
    found: Recipe = {}
    for key, value in recipe.items():
        if isinstance(value, dict):
            found[key] = _resolved(value, folder)
        elif key in CODE and isinstance(value, list):
            found[key] = [str(folder / word) if _is_in_file(word) else word for word in value]
        else:
            found[key] = str(folder / str(value)) if key in CODE and _is_in_file(value) else value
    return found


def _code_in(recipe: Recipe) -> list[str]:
    """Return every value of the form file.py:function or module:function."""
    found: list[str] = []
    for key, value in recipe.items():
        if isinstance(value, dict):
            found += _code_in(value)
        elif key in CODE:
            words = [str(word) for word in (value if isinstance(value, list) else [value])]
            words = [word for word in words if key != "mask_where" or _is_in_file(word)]
            found += [word for word in words if ":" in word and word.partition(":")[0] not in NOT_CODE]
    return found


def _is_in_file(word: Any) -> bool:
    return isinstance(word, str) and word.rpartition(":")[0].endswith(".py")
