"""Mutations: each entry takes one protection out of the product, and names tests that then fail.

The entries are the TOML files of this folder. `python3 -m tests.mutations` plays them; the gate only checks
that each entry still fits the code.
"""
