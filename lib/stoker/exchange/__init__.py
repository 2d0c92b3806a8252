"""Tokens to and from other programs: import, export."""
