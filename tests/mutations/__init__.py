"""Mutations: each entry removes one protection from the product, and names tests that must then fail.

The entries are the TOML files of this folder. `python3 -m tests.mutations` runs them; the gate only checks
that each entry still fits the code."""
