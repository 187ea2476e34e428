"""The command line: its entry points, and the shared parts of the operators' commands.

The commands (``dispatcher_project/management/commands``) are thin: services do the work.
"""
