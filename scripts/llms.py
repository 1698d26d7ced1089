"""
The documentation as text: `llms.txt`, `llms-full.txt`, and a `.md` beside each page of the built docs.

`docs/conf.py` calls `write` when the pages are built. A page of text is its source without the directives of Sphinx:
names that the reference documents stand there with their signatures and docstrings. `llms.txt` lists the pages by
section, as https://llmstxt.org describes it; `llms-full.txt` has them one behind the other.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

BLOCK = re.compile(r"^```\{([\w-]+)\}\n(.*?)^```\n?", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r'<picture>\n.*\n<img alt="([^"]*)" src="([^"]*)">\n</picture>')
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./){2}([^()\s]+)\)")
"""A link from a page into the repository, which is not built."""
NOT_RUN = re.compile(r"^<!-- .* -->\n\n?", re.MULTILINE)
DIRECTIVE = re.compile(r"^\.\. (?:auto\w+|py:data):: (\S+)\n((?: {3}.*\n|\n)*)", re.MULTILINE)
QUOTED = re.compile(r"(: |-> )(?:'([^']*)'|\"([^\"]*)\")")
"""An annotation as a signature prints it."""
LISTED = re.compile(r"^- \[([^\]]+)\]\(([\w/-]+)\.md\)[:,]? ?(.*)$", re.MULTILINE)
"""A page in the list of an index, with its name."""
SECTIONS = ("tutorial", "how-to", "explanation", "reference")


def title_of(text: str) -> str:
    """Return the title of a page."""
    return text.partition("\n")[0].removeprefix("# ")


def as_text(source: str) -> str:
    """Return a page without what only Sphinx and the tests read."""
    text = BLOCK.sub(lambda block: _documented(block[2]) if block[1] == "eval-rst" else "", source)
    text = PICTURE.sub(lambda found: f"![{found[1]}]({found[2].replace('pictures/', '_images/')})", text)
    text = OUTSIDE.sub(r"\1 (`\2` in the repository)", text)
    return NOT_RUN.sub("", text).rstrip() + "\n"


def _documented(block: str) -> str:
    """Return what a block of directives documents."""
    return "\n".join(_described(found[1], found[2]) for found in DIRECTIVE.finditer(block + "\n"))


def _described(name: str, below: str) -> str:
    """Return signature and docstring of a name, and of its members where they are asked for."""
    found = _resolved(name)
    options = dict(re.findall(r"^ {3}:([\w-]+):(.*(?:\n {6,}\S.*)*)$", below, re.MULTILINE))
    words = "" if options else inspect.cleandoc(below)
    parts = [f"#### `{name}{_signature(found)}`\n\n{words or _docstring(found)}"]
    if "members" in options:
        left_out = _names(options.get("exclude-members", ""))
        for member in _names(options["members"]) or _public(found):
            if member not in left_out:
                value = inspect.getattr_static(found, member, None)
                value = getattr(value, "__func__", value)
                parts.append(f"- `{member}{_signature(value)}`: {_docstring(value)}".rstrip(": ").replace("\n", "\n  "))
    return "\n".join(part.rstrip() for part in parts if part.strip()) + "\n"


def _resolved(name: str) -> object:
    """Return what a full name names."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise LookupError(name)


def _names(words: str) -> list[str]:
    return [name for name in re.split(r"[,\s]+", words) if name]


def _public(found: object) -> Iterator[str]:
    """Yield the public members that a class defines, those without a docstring only if they are constants."""
    for name, value in vars(found).items():
        if not name.startswith("_") and (_docstring(getattr(value, "__func__", value)) or isinstance(value, str)):
            yield name


def _signature(found: object) -> str:
    if not (inspect.isroutine(found) or inspect.isclass(found)):
        return ""
    try:
        text = str(inspect.signature(found))
    except (TypeError, ValueError):
        return ""
    return (
        QUOTED.sub(lambda part: f"{part[1]}{part[2] or part[3]}", text)
        .replace("(self, /, ", "(")
        .replace("(self, ", "(")
    )


def _docstring(found: object) -> str:
    """Return the docstring of a function, a property or a class, not that of the class of a value."""
    if inspect.isroutine(found) or inspect.isclass(found) or isinstance(found, property):
        return inspect.getdoc(found) or ""
    return ""


def listed(docs: Path) -> dict[str, list[tuple[str, str, str]]]:
    """Return the pages by the title of their section: name, title and what the index says of them."""
    found = {}
    for section in SECTIONS:
        index = (docs / section / "index.md").read_text("utf-8")
        found[title_of(index)] = [
            (f"{section}/{name}", title_of((docs / section / f"{name}.md").read_text("utf-8")), said.strip("."))
            for _, name, said in LISTED.findall(index)
        ]
    found["Questions"] = [("faq", title_of((docs / "faq.md").read_text("utf-8")), "answered in a few lines")]
    return found


def write(docs: Path, out: Path, base: str = "") -> None:
    """
    Write the files into a built documentation.

    Args:
        docs: the folder of the sources.
        out: the folder of the built pages.
        base: the address at which they are served, if that is known: the links of `llms.txt` begin with it.
    """
    pages = listed(docs)
    index = as_text((docs / "index.md").read_text("utf-8"))
    texts = {"index": index}
    lines = [f"# {title_of(index)}", "", f"> {index.splitlines()[2]}", ""]
    lines += [f"All pages in one file: [llms-full.txt]({base}llms-full.txt).", ""]
    for section, names in pages.items():
        lines += [f"## {section}", ""]
        for name, title, said in names:
            texts[name] = as_text((docs / f"{name}.md").read_text("utf-8"))
            lines.append(f"- [{title}]({base}{name}.md)" + (f": {said}" if said else ""))
        lines.append("")
    for section in SECTIONS:
        texts[f"{section}/index"] = as_text((docs / section / "index.md").read_text("utf-8"))
    for name, text in texts.items():
        target = out / f"{name}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    (out / "llms.txt").write_text("\n".join(lines), "utf-8")
    whole = [f"<!-- {name}.md -->\n\n{text}" for name, text in texts.items() if not name.endswith("/index")]
    (out / "llms-full.txt").write_text("\n".join(whole), "utf-8")
