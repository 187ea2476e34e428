"""`manage.py prove --hostile`: attacks on a running dispatcher, and their effect on another tenant.

The attacks are in `attacks/`, one small class each; docs/explanation/security.md explains how to run them.
"""
