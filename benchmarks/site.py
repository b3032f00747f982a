"""MkDocs hook: what the documentation site does beyond rendering `docs`.

1. Pages at the root of the repository, the examples and the recipes become pages of the site.
2. Links to them are rewritten. On a code host the same links point to the files.
3. Formulas become MathML, which browsers show without scripts and fonts.
"""

from __future__ import annotations

import ast
import html
import posixpath
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "README.md": "index.md",
    "src/semioffline/recipes": "recipes.md",
} | {str(path.relative_to(ROOT)): f"examples/{path.stem}.md" for path in sorted((ROOT / "examples").rglob("*.py"))}
"""path in the repository -> page of the site"""
SOURCES = {page: path for path, page in PAGES.items()}
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> None:
    for path, page in PAGES.items():
        if page != "index.md":  # docs has a page of its own
            files.append(File.generated(config, page, content=content_of(ROOT / path)))


def content_of(path: Path) -> str:
    if path.is_dir():
        return recipes_page(path)
    text = path.read_text()
    if path.suffix == ".py":
        return f"# {path.name}\n\n{ast.get_docstring(ast.parse(text))}\n\n```python\n{text}```\n"
    return text


def recipes_page(folder: Path) -> str:
    """The recipes, as they ship in the package."""
    lines = ["# Recipes", "", "`--config NAME` takes one of these. Flags on the command line override its values.", ""]
    for path in sorted(folder.glob("*.yaml")):
        lines += [f"## {path.stem}", "", "```yaml", path.read_text().rstrip(), "```", ""]
    return "\n".join(lines)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    own = page.file.src_uri
    source = SOURCES.get(own) if own != "index.md" else None
    return rewrite_links(markdown, own, source or f"docs/{own}")


def rewrite_links(markdown: str, page: str, source: str) -> str:
    """page: its path on the site; source: in the repository, where its links start."""

    def rewrite(match: re.Match[str]) -> str:
        target = match[2]
        if ":" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        on_site = PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        if on_site is None:
            return match[0]  # MkDocs warns of it
        return f"{match[1]}{posixpath.relpath(on_site, posixpath.dirname(page) or '.')}{match[3] or ''}{match[4]}"

    return LINK.sub(rewrite, markdown)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    def formula(match: re.Match[str]) -> str:
        return convert(html.unescape(match[2]), display="block" if match[1] == "div" else "inline")

    return FORMULA.sub(formula, content)
