from __future__ import annotations

from dataclasses import replace

import pytest
from django.conf import LazySettings

from foundation.secrets import SecretUnreadable, decrypt, encrypt


def test_a_secret_comes_back_and_is_not_stored_in_the_clear() -> None:
    stored = encrypt("whsec_ä")
    assert decrypt(stored) == "whsec_ä"
    assert "whsec" not in stored
    assert encrypt("whsec_ä") != stored


def test_under_another_key_it_is_unreadable(settings: LazySettings) -> None:
    stored = encrypt("whsec_")
    settings.DISPATCHER = replace(settings.DISPATCHER, secret_key="another one")
    with pytest.raises(SecretUnreadable, match="DISPATCHER_SECRET_KEY"):
        decrypt(stored)


def test_the_dispatchers_own_key_overrides_djangos(settings: LazySettings) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, secret_key="ours")
    stored = encrypt("whsec_")
    settings.SECRET_KEY = "changed"
    assert decrypt(stored) == "whsec_"


@pytest.mark.parametrize("stored", ["", "nonsense", "gAAAAAä"])
def test_an_invalid_secret_is_unreadable(stored: str) -> None:
    with pytest.raises(SecretUnreadable):
        decrypt(stored)
