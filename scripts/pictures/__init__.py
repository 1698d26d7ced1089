"""
The pictures of the README and the documentation, light and dark, made from what the code does: `make pictures`.

Each picture is a function of a `Theme` that returns the text of its file. A test compares all files with what is drawn
anew, so a picture is never older than what it shows.
"""
