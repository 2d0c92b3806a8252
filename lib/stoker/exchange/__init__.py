"""Tokens and models to and from other programs: import, export, export-model, generate."""
