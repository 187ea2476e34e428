"""The command line: its entry points, and what the operators' commands share.

The commands (``dispatcher_project/management/commands``) are thin: services do the work.
"""
