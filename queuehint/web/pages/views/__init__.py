"""What pages show: plain functions from values to what a template is given."""
