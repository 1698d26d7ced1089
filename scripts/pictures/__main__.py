"""Draw all pictures, and write the figures of `make bench` into the pages: ``python -m scripts.pictures``."""

from __future__ import annotations

from scripts.pictures.all import FOLDER, pictures
from scripts.pictures.figures import PAGES, filled


def main() -> None:
    """Write each file anew, delete those of removed pictures, and fill in the figures."""
    FOLDER.mkdir(exist_ok=True)
    files = pictures()
    for old in FOLDER.glob("*.svg"):
        if old.name not in files:
            old.unlink()
    for name, svg in files.items():
        (FOLDER / name).write_text(svg, "utf-8")
    for page in PAGES:
        page.write_text(filled(page.read_text("utf-8")), "utf-8")
    print(f"{len(files)} files in docs/pictures")


if __name__ == "__main__":
    main()
