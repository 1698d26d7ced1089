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
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autoclass_content = "both"
napoleon_numpy_docstring = False

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = f"queuehint {release}"


def setup(app: Sphinx) -> None:
    """Show Mermaid diagrams as text: the forges draw them, and here they need no program from elsewhere."""
    app.add_lexer("mermaid", TextLexer)
