"""`manage.py prove`: a trial of a whole dispatcher under faults, judged by four records that know nothing of
each other: the clients' ledger, the database, the GPU servers' logs and the callback receiver's log.

docs/explanation/proving.md tells operators how to use it. Nothing here is imported by the product itself.
"""
