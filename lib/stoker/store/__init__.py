"""Durable files: atomic writes, records, chained logs, requests and the layout of the state directory."""
