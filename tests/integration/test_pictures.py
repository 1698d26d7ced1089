"""Pictures in the documentation show what the commands print."""

from __future__ import annotations

from scripts.pictures import FOLDER, PICTURES, description, printed, said, store


def test_no_picture_is_older_than_what_its_command_prints() -> None:
    with store() as url:
        older = [
            name
            for name, command in PICTURES.items()
            if description(FOLDER / f"{name}.svg") != said(printed(url, command))
        ]
    assert older == [], "draw them anew: make pictures"
