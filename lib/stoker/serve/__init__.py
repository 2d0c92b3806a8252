"""Answers completions over HTTP with a bundled model: serve."""
