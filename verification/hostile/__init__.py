"""`manage.py prove --hostile`: attacks on a running dispatcher, and what another tenant notices of them.

The attacks are in `attacks/`, one small class each; docs/explanation/security.md says how to play them.
"""
