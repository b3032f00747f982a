"""Griffe extension: a field declared with `setting(default, help, ...)` is documented by its help."""

from __future__ import annotations

import ast
from typing import Any

import griffe

_RANGE = 3
"""Position of `allowed` among the arguments of `setting`."""


class Settings(griffe.Extension):
    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        call = attr.value
        if not isinstance(call, griffe.ExprCall) or str(call.function) != "setting":
            return
        positional = [argument for argument in call.arguments if not isinstance(argument, griffe.ExprKeyword)]
        attr.value = positional[0]
        attr.docstring = griffe.Docstring(ast.literal_eval(str(positional[1])), parent=attr)
