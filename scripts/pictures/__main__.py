"""Draw all pictures: ``python -m scripts.pictures``."""

from __future__ import annotations

from scripts.pictures.all import FOLDER, pictures


def main() -> None:
    """Write each file anew, and delete those that are of no picture any more."""
    FOLDER.mkdir(exist_ok=True)
    files = pictures()
    for old in FOLDER.glob("*.svg"):
        if old.name not in files:
            old.unlink()
    for name, svg in files.items():
        (FOLDER / name).write_text(svg, "utf-8")
    print(f"{len(files)} files in docs/pictures")


if __name__ == "__main__":
    main()
