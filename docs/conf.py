"""Settings of the documentation; `make docs` builds it."""

from importlib.metadata import version as version_of

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

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
myst_heading_anchors = 3

copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = f"queuehint {release}"


def keep_colons(app: Sphinx, what: str, name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Keep napoleon, which runs in between, from reading what stands before a colon as an attribute's type."""
    if what in {"attribute", "property"}:
        lines[:] = as_written.setdefault(name, list(lines))


as_written: dict[str, list[str]] = {}


def setup(app: Sphinx) -> None:
    """Register what the settings above cannot say."""
    # The forges draw Mermaid diagrams; here they are shown as text and need no program from elsewhere.
    app.add_lexer("mermaid", TextLexer)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
    app.connect("autodoc-process-docstring", keep_colons, priority=600)
