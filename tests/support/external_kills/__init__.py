"""Kills real trainers of the user's own at any moment, and checks what each launch begins from.

PYTHONPATH=tests python -m support.external_kills --help
"""
