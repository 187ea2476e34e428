"""The attacks, by who can play them."""
