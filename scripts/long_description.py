"""
Make the long description of a distribution of `README.md`: hatchling runs this when it builds.

A package index resolves no link to a file of the repository. Such a link is replaced by its text, such an image by its
description; the last paragraph says where the pages are. Code and other links stay as they are.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
# A target without a scheme is a file of the repository, or a heading of the page, which an index gives no anchor.
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?!https?:)[^()\s]*\)")
IMAGE = re.compile(r"!\[([^\[\]]*)\]\((?!https?:)[^()\s]*\)")
PICTURE = re.compile(r"<picture>.*?alt=\"([^\"]*)\".*?</picture>|<img\b[^>]*?alt=\"([^\"]*)\"[^>]*>", re.DOTALL)
NOTE = "\nThe pages that this text names are in the folder `docs` of the source distribution.\n"


class LongDescription(MetadataHookInterface):
    """Sets `readme`, which `pyproject.toml` calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the text to the metadata of the project."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_local_links(text) + NOTE}


def without_local_links(text: str) -> str:
    """Return a page of Markdown without links and images that lead into the repository."""
    parts = FENCED.split(text)
    for number in range(0, len(parts), 2):
        prose = PICTURE.sub(lambda found: f"*{found[1] or found[2]}.*", parts[number])
        parts[number] = LINK.sub(r"\1", IMAGE.sub(r"*\1.*", prose))
    return "".join(parts)
