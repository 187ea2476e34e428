"""Reference pages written from code, the site that is built from docs/, and the README's screenshot."""
