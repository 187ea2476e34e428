"""A pytest plugin: worker processes forked after one collection.

`-p tests.support.forked.plugin --forks N`. With xdist each worker imports and collects all tests anew. For
Linux only: elsewhere the system's own libraries may have started threads, which a fork does not take along.
"""
