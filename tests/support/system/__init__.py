"""A whole dispatcher in processes of its own, and who looks at it from outside."""
