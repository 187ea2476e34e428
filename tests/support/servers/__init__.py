"""Servers that a test starts: GPU servers, web processes, receivers, Redis with its Sentinel."""
