"""`manage.py prove`: a trial of a whole dispatcher under faults, judged by four independent records: the
clients' ledger, the database, the GPU servers' logs and the callback receiver's log.

docs/explanation/proving.md is the guide for operators. The product itself does not import this package.
"""
