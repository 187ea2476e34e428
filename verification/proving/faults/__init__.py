"""What the trial breaks, each fault a small class; `registry` has them by name."""
