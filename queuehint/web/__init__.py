"""
A board: an HTTP API and pages for those who look after jobs, as an ASGI application. It needs the extra ``web``.

>>> from queuehint import Scheduler
>>> from queuehint.web import Access, make_app
>>> app = make_app(Scheduler(), auth=lambda request: Access(name="ann", write=True))

- `table` is the form of the table of all questions and orders; `questions`, `orders` and `flows` have its rows. Bodies
  and parameters follow from the kinds of the values that the rows name (`forms`).
- `access` says who may do what, `scope` what belongs to a path, `store` how long and how often a store is asked,
  `board` joins them: by `Asker.answer` both the API and the pages ask.
- `events` are its streams. `pulse` finds whether the store is busy: then pages tick by looks at its counts, because to
  follow its events makes each job dearer. `fragments` are parts of pages, made once for readers with the same rights.
- To add a question, add a row to `QUESTIONS`. To add a page, write a function in a module of `pages`, a template, and a
  row of `pages.PAGES`; its docstring says what a page is given.
"""

from __future__ import annotations

from queuehint.errors import MissingExtraError

try:
    import jinja2  # noqa: F401
    import starlette  # noqa: F401
except ImportError:
    raise MissingExtraError("web", "the board and its HTTP API") from None

from queuehint.web.access import Access, BasicAuth
from queuehint.web.app import beside, make_app

__all__ = ["Access", "BasicAuth", "beside", "make_app"]
