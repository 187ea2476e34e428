"""`doctor`: checks every part, and reports each finding with its consequence and what to do."""
