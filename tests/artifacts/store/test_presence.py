"""An object counts as lost only if two requests find none."""

from __future__ import annotations

import hashlib
from pathlib import Path
from unittest.mock import patch

import pytest

from artifacts.keys import ObjectKey
from artifacts.store.contract import StoreUnavailable
from artifacts.store.local import LocalStore
from artifacts.store.presence import find_expected
from gpus.protocol import SystemClock

DATA = b"bytes"
KEY = ObjectKey(1, hashlib.sha256(DATA).hexdigest())


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path, "http://web/store", SystemClock().now)


def test_an_object_is_found_or_lost(store: LocalStore) -> None:
    store.write(ObjectKey(2, KEY.sha256), len(DATA), [DATA])  # an empty folder is not mounted
    assert find_expected(store, KEY) is None
    store.write(KEY, len(DATA), [DATA])
    found = find_expected(store, KEY)
    assert found is not None
    assert (found.key, found.bytes) == (KEY, len(DATA))


def test_a_store_that_lags_behind_is_asked_again_later(store: LocalStore) -> None:
    store.write(KEY, len(DATA), [DATA])
    with patch.object(LocalStore, "find", return_value=None), pytest.raises(StoreUnavailable):
        find_expected(store, KEY)
