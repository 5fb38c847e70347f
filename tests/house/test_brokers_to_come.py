"""The page that judges the contract on paper judges all of it."""

from __future__ import annotations

import re

import pytest

from framework.testing.servers import ROOT
from framework.transports import contract, kept

PAGE = (ROOT / "docs" / "brokers-to-come.md").read_text().partition("verb by verb")[2]
NOT_THE_BROKERS = {"capabilities", "producer", "unsent", "rescue", "rescued"}
"""What has no counterpart at a broker, or is part of another verb."""


def verbs() -> set[str]:
    """What a transport has to do, or may."""
    kinds = (
        contract.Transport, contract.Connection, contract.Rescuable, contract.Terminating, contract.Releasable, contract.HandsOn,
        contract.Outliving, contract.Producer, contract.HeadsEach, contract.TellsTime, kept.Inspectable, kept.Pausable,
    )  # fmt: skip
    return {name for kind in kinds for name in vars(kind) if not name.startswith("_")} - NOT_THE_BROKERS


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_each_verb_of_the_contract_is_judged(verb: str) -> None:
    named = {word for line in PAGE.splitlines() if line.startswith("- ") for word in re.findall(r"`(\w+)", line)}
    assert verb in named
