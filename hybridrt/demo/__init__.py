"""The demo checkpoint (package data) and the text that it understands."""
