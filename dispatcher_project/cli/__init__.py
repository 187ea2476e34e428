"""What the operators' commands share: how they are asked, what they show, what they read and check.

The commands themselves (``dispatcher_project/management/commands``) are thin; what is done, services do.
"""
