"""The web server: uvicorn with bounds on what a connection may cost (docs/security.md)."""
