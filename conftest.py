"""
Run the code in all Markdown files as doctests; an expected output ends at the fence that closes its block.

The blocks `python` run too, each as a whole, in the order of the page; a block `text` right below one is what it
prints. One that cannot run here says why, in a comment right above: ``<!-- not run: it needs a server -->``.
"""

from __future__ import annotations

import doctest
import re
import sys
from typing import Any

pytest_plugins = ["tests.forks", "tests.time_limit"]

BLOCK = re.compile(
    r"^(?P<why><!-- not run: [^\n]+ -->\n\n?)?```python\n(?P<code>.*?)^```$(?:\n\n```text\n(?P<printed>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)


def pytest_configure() -> None:
    """End the output of an example at the closing fence, and run plain blocks as examples."""
    example_re: re.Pattern[str] = vars(doctest.DocTestParser)["_EXAMPLE_RE"]
    prompt = "(?![ ]*>>>)"
    assert prompt in example_re.pattern
    pattern = example_re.pattern.replace(prompt, prompt + "(?![ ]*```)")
    setattr(doctest.DocTestParser, "_EXAMPLE_RE", re.compile(pattern, example_re.flags))  # noqa: B010
    setattr(doctest.DocTestParser, "get_doctest", get_doctest)  # noqa: B010
    # The code of a page stands for a program with a file; a worker process of xdist has none as its main module.
    main = sys.modules["__main__"]
    if getattr(main, "__file__", None) is None:
        main.__file__ = __file__


def get_doctest(
    parser: doctest.DocTestParser,
    string: str,
    globs: dict[str, Any],
    name: str,
    filename: str | None,
    lineno: int | None,
) -> doctest.DocTest:
    """Add the plain blocks of a page to its examples with prompts, in the order of the page."""
    examples = parser.get_examples(string, name)
    if filename is not None and filename.endswith(".md"):
        for block in BLOCK.finditer(string):
            if block["why"]:
                continue
            source = f"exec(compile({block['code']!r}, {name!r}, 'exec'), globals())\n"
            examples.append(
                doctest.Example(source, block["printed"] or "", lineno=string.count("\n", 0, block.start()))
            )
        examples.sort(key=lambda example: example.lineno)
    return doctest.DocTest(examples, globs, name, filename, lineno, string)
