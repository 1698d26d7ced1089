"""Content of pages: plain functions from values to the variables of a template."""
