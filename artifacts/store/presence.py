"""Whether the store has lost the object of a row: not concluded from one answer, because it ends a job
for good."""

from __future__ import annotations

from artifacts.keys import ObjectKey
from artifacts.store.contract import NoSuchObject, Store, StoredObject, StoreUnavailable


def find_expected(store: Store, key: ObjectKey) -> StoredObject | None:
    """Return an object that should be there; None if a read finds none, either. Raises StoreUnavailable if
    the two answers differ: some stores lag behind for a moment."""
    found = store.find(key)
    if found is not None:
        return found
    try:
        store.read(key, 0, 1)
    except NoSuchObject:
        return None
    raise StoreUnavailable("The store says that it has an object, and that it does not.")
