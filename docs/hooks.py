"""What MkDocs asks while it builds the site: made pages, links, checks.

The pages themselves are made in `pages/`. Nothing is fetched: a built page that loads
something from another host is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pages import (
    command_line,
    constants,
    coverage,
    does_it_train,
    examples,
    flags,
    hardware,
    matrix,
    notebooks,
    reference,
    releases,
)

ROOT = Path(__file__).parents[1]
#: A page says where a table goes with "<!-- made: flags -->".
_MADE = {
    "does-it-train-verdicts": does_it_train.verdicts_table,
    "does-it-train-sizes": does_it_train.sizes_table,
    "does-it-train-losses": does_it_train.losses_tables,
    "does-it-train-faults": does_it_train.faults_list,
    "does-it-train-prices": does_it_train.prices_table,
    "does-it-train-attention": does_it_train.attention_table,
    "does-it-train-trn3": does_it_train.trn3_table,
    "flags": flags.flags_table,
    "variables": flags.variables_table,
    "sdk-defaults": flags.defaults_table,
    "legal": flags.legal_table,
    "matrix": matrix.matrix_table,
    "nki-releases": releases.releases_table,
    "nki-differences": releases.differences_table,
    "nki-reports": releases.reports_table,
}
_FETCHED = re.compile(
    r"<(?:script|img|iframe)[^>]+src=[\"']?https?:|<link[^>]+stylesheet[^>]+https?:"
)
_EXAMPLE = re.compile(r"\]\((?:\.\./)+examples/([\w./]*)\)")
_NOTEBOOK = re.compile(r"\]\((?:\.\./)+notebooks/(\w+)\.ipynb\)")
_DOCUMENT = re.compile(r"\]\((?:\.\./)+docs/")

Nav = list[Any]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages that are made, and puts them into the navigation."""
    nav: Nav = config.nav or []
    made = dict(_pages())
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    found = [notebooks.read(path) for path in sorted(ROOT.glob("notebooks/*.ipynb"))]
    for notebook in found:
        _add_notebook(files, config, notebook)
    titles = [{n.title: f"tutorials/{n.path.stem}.md"} for n in found]
    _fill(nav, "Notebooks", titles)
    names = reference.groups()
    _fill(nav, "Python", [{g.title: f"reference/{f}.md"} for f, g in names.items()])
    if (ROOT / "docs/benchmarks.md").is_file():
        _fill(nav, "Explanation", [{"Benchmarks": "benchmarks.md"}])
    return files


def _pages() -> Iterator[tuple[str, str]]:
    """Place and text of every page that is made."""
    yield "coverage.md", coverage.page()
    yield "hardware.md", hardware.page()
    yield "constants.md", constants.page()
    yield "examples.md", examples.page(ROOT / "examples")
    yield "reference/command_line.md", command_line.page()
    names = reference.groups()
    yield "reference/index.md", reference.index(names)
    for file, group in names.items():
        yield f"reference/{file}.md", reference.page(group)
    for name in ("CHANGELOG", "CONTRIBUTING"):
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
        yield f"{name.lower()}.md", text


def _add_notebook(
    files: Files, config: MkDocsConfig, notebook: notebooks.Notebook
) -> None:
    folder, path = "tutorials", notebook.path
    page = f"{folder}/{path.stem}.md"
    files.append(File.generated(config, page, content=notebook.text))
    copy = f"{folder}/{path.name}"
    files.append(File.generated(config, copy, abs_src_path=str(path)))
    for name, content in notebook.files.items():
        files.append(File.generated(config, f"{folder}/{name}", content=content))


def _fill(nav: Nav, title: str, entries: Nav) -> None:
    """Appends entries to the section of that title; drops it if it stays empty."""
    for item in [entry for entry in nav if isinstance(entry, dict)]:
        ((name, below),) = item.items()
        if name == title:
            below = [*(below or []), *entries]
            item[name] = below
            if not below:
                nav.remove(item)
        elif isinstance(below, list):
            _fill(below, title, entries)


def on_page_markdown(
    markdown: str, *, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Puts made tables in their places; links within the repository lead to pages."""
    for name, make in _MADE.items():
        marker = f"<!-- made: {name} -->"
        if marker in markdown:
            markdown = markdown.replace(marker, make())
    up = "../" * page.file.src_uri.count("/")

    def link(found: re.Match[str]) -> str:
        anchor = f"#{examples.anchor(found[1])}" if found[1] else ""
        return f"]({up}examples.md{anchor})"

    markdown = _NOTEBOOK.sub(rf"]({up}tutorials/\1.md", markdown)
    markdown = _DOCUMENT.sub(rf"]({up}", markdown)
    return _EXAMPLE.sub(link, markdown)


def on_post_build(*, config: MkDocsConfig) -> None:
    """Refuses a site that needs other hosts.

    Raises:
        PluginError: a page loads something over the network.
    """
    for path in Path(config.site_dir).rglob("*.html"):
        found = _FETCHED.search(path.read_text(encoding="utf-8"))
        if found:
            raise PluginError(f"{path} loads from another host: {found[0]}")
