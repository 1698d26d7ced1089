"""Settings of the documentation; `make docs` builds it."""

import os
import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import attrs
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts import llms
from scripts.pictures import mermaid

project = "queuehint"
copyright = "2026, the queuehint authors"
author = "the queuehint authors"
release = version_of("queuehint")
version = ".".join(release.split(".")[:2])

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]

# `name` in a docstring is a link when it is the name of something, and code otherwise.
default_role = "py:obj"

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist", "tasklist"]
myst_heading_anchors = 4

copybutton_exclude = ".linenos, .gp, .go"

# Read the Docs knows the address.
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")
html_theme = "furo"
html_title = f"queuehint {release}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]


def keep_colons(app: Sphinx, what: str, name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Keep napoleon, which runs in between, from reading what stands before a colon as an attribute's type."""
    if what in {"attribute", "property"}:
        lines[:] = as_written.setdefault(name, list(lines))


as_written: dict[str, list[str]] = {}


PICTURE = re.compile(
    r'<picture>\n<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\n'
    r'<img alt="(?P<alt>[^"]+)" src="(?P<light>[^"]+)">\n</picture>'
)


def show_both(_app: Sphinx, _page: str, text: list[str]) -> None:
    """Read the two versions of a picture, as forges show them, as images of which the theme shows one."""
    image = "```{{image}} {}\n:class: only-{}\n:alt: {}\n```"
    text[0] = PICTURE.sub(
        lambda found: "\n\n".join(image.format(found[name], name, found["alt"]) for name in ("light", "dark")), text[0]
    )


PROMPTS = re.compile(r"(?<=^```pycon\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
COMPOUND = re.compile(r"^>>> (?:@|(?:async|class|def|for|if|try|while|with)\b).*\n(?:\.\.\..*\n)*", re.MULTILINE)


def end_blocks(_app: Sphinx, _page: str, text: list[str]) -> None:
    """Show the empty line that ends a function at a prompt: without it Python 3.12 refuses a pasted block."""
    text[0] = PROMPTS.sub(lambda block: COMPOUND.sub(lambda found: f"{found[0]}...\n", block[0]), text[0])


def list_pages(_app: Sphinx, page: str, text: list[str]) -> None:
    """Put the pages that an index lists into the contents, in the same order."""
    if page.rpartition("/")[2] == "index":
        names = "\n".join(name for _, name, _ in llms.LISTED.findall(text[0]))
        text[0] += f"\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"


def draw(_app: Sphinx, _page: str, text: list[str]) -> None:
    """Draw the Mermaid diagrams, as the forges do, without a program from elsewhere."""
    text[0] = mermaid.shown(text[0])


ATTRS_DEFAULT = re.compile(r"attr_dict\['(\w+)'\]\.default")


def show_defaults(
    _app: Sphinx, _what: str, _name: str, found: Any, _options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Show the defaults of a class of attrs, not the text from which attrs has made its constructor."""
    if signature and attrs.has(found):
        fields = attrs.fields_dict(found)
        signature = ATTRS_DEFAULT.sub(lambda default: repr(fields[default[1]].default), signature)
        signature = signature.replace("=NOTHING", "=...")  # A default that is made for each value.
    return signature, returns


def show_plain_types(app: Sphinx, _what: str, name: str, *_rest: object) -> None:
    """Show the types of fields without the kinds from which their checks are compiled."""
    types = app.env.current_document.autodoc_annotations.get(name, {})
    types.update({field: without_kinds(text) for field, text in types.items()})


def without_kinds(text: str) -> str:
    """Return a type without what stands behind the first comma of each `Annotated`."""
    while (start := text.find("Annotated[")) >= 0:
        depth, comma = 0, None
        for at in range(start + len("Annotated"), len(text)):
            depth += (text[at] in "[(") - (text[at] in "])")
            if text[at] == "," and depth == 1 and comma is None:
                comma = at
            if depth == 0:
                break
        text = text[:start] + text[start + len("Annotated[") : comma] + text[at + 1 :]
    return text


def link_text(app: Sphinx, page: str, _template: str, context: dict[str, Any], _doctree: object) -> None:
    """Name the page as text, for programs, in the head of the built page."""
    if page not in {"genindex", "search", "py-modindex"}:
        name = page.rpartition("/")[2]
        context["metatags"] += f'<link rel="alternate" type="text/markdown" href="{name}.md">'


def write_text(app: Sphinx, error: Exception | None) -> None:
    """Write the pages as text beside the built ones."""
    if error is None and app.builder.name in {"html", "dirhtml"}:
        llms.write(Path(app.srcdir), Path(app.outdir), app.config.html_baseurl)


def setup(app: Sphinx) -> None:
    """Register what the settings above cannot say."""
    # Of what a command prints, as text.
    app.add_lexer("mermaid", TextLexer)
    # Behind autodoc, which has written the types down.
    app.connect("autodoc-process-signature", show_plain_types, priority=900)
    app.connect("autodoc-process-signature", show_defaults)
    app.connect("html-page-context", link_text)
    app.connect("build-finished", write_text)
    app.connect("source-read", list_pages)
    app.connect("source-read", draw)
    app.connect("source-read", show_both)
    app.connect("source-read", end_blocks)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
    app.connect("autodoc-process-docstring", keep_colons, priority=600)
