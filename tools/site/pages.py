"""Hooks of mkdocs that add files outside docs/ to the site if its pages link to them.

Links are relative to the repository (`../src/spectr/types.py`), so that they also work when the repository is browsed.
On the site every file has its path in the repository without `docs/`. Markdown files become pages, and all others are
copied. A link to a file that does not exist is left unchanged, and mkdocs reports it.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

__all__ = ["on_files", "on_page_markdown", "outside_links", "site_path"]

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")
OTHER_PAGES = ("examples/README.md",)
_LINK = re.compile(r"(\]\()([^)\s#:]+)([^)\s]*\))")
_CODE = re.compile(r"(^ *```.*?^ *```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def site_path(path: str) -> str:
    """Return the path on the site of a file in the repository."""
    return path.removeprefix("docs/")


def outside_links(text: str, folder: str) -> list[str]:
    """Return the files outside docs/ that a page in `folder` links to."""
    linked = [posixpath.normpath(posixpath.join(folder, found[1])) for found in _LINK.findall(_CODE.sub("", text))]
    return [path for path in linked if not path.startswith("docs/") and (ROOT / path).is_file()]


def _source(page_path: str) -> str:
    """Return the path in the repository of a page of the site."""
    return page_path if page_path in (*ROOT_PAGES, *OTHER_PAGES) else f"docs/{page_path}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, and every file that some page links to."""
    for path in (*ROOT_PAGES, *OTHER_PAGES):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    for page in list(files.documentation_pages()):
        for path in outside_links(page.content_string, posixpath.dirname(_source(page.src_uri))):
            if files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links between files of the repository into links between files of the site."""
    source = _source(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
        if not (ROOT / path).is_file():
            return link[0]
        here = posixpath.dirname(page.file.src_uri)
        return f"{link[1]}{posixpath.relpath(site_path(path), here or '.')}{link[3]}"

    parts = _CODE.split(markdown)
    return "".join(part if _CODE.fullmatch(part) else _LINK.sub(moved, part) for part in parts)
