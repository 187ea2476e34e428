"""A whole dispatcher in processes of its own, and tools that look at it from outside."""
