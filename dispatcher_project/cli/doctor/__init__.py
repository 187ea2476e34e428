"""`doctor`: looks at every part, and says of what it finds what it means and what to do."""
