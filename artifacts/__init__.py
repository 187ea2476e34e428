"""Files that jobs read and write: rows of artifacts, their uses, and the stores that keep the bytes
(docs/reference/artifacts.md). Knows tenants and jobs by id only."""
