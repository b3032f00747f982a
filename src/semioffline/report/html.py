"""Make HTML pages that are one file: template, style, scripts and data. Text from data is shown, never run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from semioffline.printing import plain

STATIC = Path(__file__).parent / "static"
_ACTIVE = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
_HALF = re.compile("[\ud800-\udfff]")


def embed(value: object) -> Markup:
    """Return JSON for a script element. No text in it can end the element or be read as markup."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ACTIVE)
    return Markup(_HALF.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def render(template: str, styles: Sequence[str], scripts: Sequence[str], **values: object) -> str:
    """Make a page. All values are escaped, and control characters in them are shown. Only our own scripts and styles
    may run: the page's policy names them by their digests.

    Args:
        template, styles, scripts: Names of files in static/.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(STATIC),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: plain(value) if type(value) is str else value,
    )
    style = "\n".join(_read(name) for name in styles)
    script = "\n".join(_read(name) for name in scripts)
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    own = {"style": Markup(style), "script": Markup(script), "policy": policy, "embed": embed}
    return environment.get_template(template).render(**own, **values)


def _read(name: str) -> str:
    """Read a file in static/. A file of another project comes with its licence."""
    path = STATIC / name
    text, licence = path.read_text(encoding="utf-8").strip(), path.parent / "LICENSE"
    return f"/*\n{licence.read_text(encoding='utf-8').strip()}\n*/\n{text}" if licence.exists() else text


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
