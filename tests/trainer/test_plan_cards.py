"""Cards: by the driver's name, by their size, and the one that is here."""

import pytest

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.cards import find_card, known_cards
from tinyzero_trainer.doctor.facts import Card, Driver
from tinyzero_trainer.plan import target
from tinyzero_trainer.plan.constants import GIB
from tinyzero_trainer.plan.proposals import usable
from tinyzero_trainer.plan.target import choose_target, present_card, read_size


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla T4", "T4"),
        ("NVIDIA RTX A1000", None),
        ("Quadro RTX 6000", None),
    ],
)
def test_cards_by_the_drivers_name(driver: str, name: str | None) -> None:
    found = find_card(driver)
    assert (found.name if found else None) == name


def test_every_card_is_found_by_its_own_name() -> None:
    assert {card.name: find_card(card.name) for card in known_cards()} == {card.name: card for card in known_cards()}
    assert all(card.flops == card.tflops * 1e12 > 2e13 and card.bandwidth > 250 for card in known_cards())


@pytest.mark.parametrize(
    ("text", "size"), [("24GB", 24e9), ("24 GiB", 24 * GIB), ("24", 24e9), ("7.5g", 7.5e9), ("80gib", 80 * GIB)]
)
def test_sizes(text: str, size: float) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-3", "24MB", "a lot", "1e3"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(SettingsError, match="give a number of GB or GiB, such as 24GB"):
        read_size(text)


TWO = (Card(0, "NVIDIA H200", (9, 0), 140 * GIB, uuid="aa-1"), Card(1, "NVIDIA L4", (8, 9), 22 * GIB, uuid="bb-2"))


@pytest.mark.parametrize(
    ("device", "visible", "name"),
    [
        ("auto", None, "NVIDIA H200"),
        ("cuda:1", None, "NVIDIA L4"),
        ("cuda:2", None, None),
        ("cpu", None, None),
        ("cuda", "1", "NVIDIA L4"),
        ("cuda:1", "1,0", "NVIDIA H200"),
        ("cuda", "GPU-bb-2", "NVIDIA L4"),
        ("cuda", "", None),
        ("cuda", "-1", None),
    ],
)
def test_the_card_that_is_here(
    device: str, visible: str | None, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "nvidia_driver", lambda _: Driver(cards=TWO))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = present_card(device)
    assert (found.name if found else None) == name


def test_no_card_has_less_than_its_box_says() -> None:
    """So that what is planned for 24GB fits an L4 too; and a named card has its own memory."""
    for name, box in {
        "L4": "24GB",
        "A10G": "24GB",
        "RTX 4090": "24GB",
        "L40S": "48GB",
        "T4": "16GB",
        "H100": "80GB",
    }.items():
        card = find_card(name)
        assert card is not None
        assert read_size(box) <= card.memory * GIB
        assert choose_target(name, box, "auto").memory == choose_target(name, None, "auto").memory
        assert choose_target(None, box, "cpu").memory == read_size(box)
    assert choose_target("RTX 4090", "12GB", "auto").memory == 12 * 10**9
    assert choose_target("RTX 4090", "48GB", "auto").memory == 48 * 10**9


def test_a_proposal_fits_though_it_takes_a_tenth_more() -> None:
    assert all(1.1 * usable(int(card.memory * GIB)) <= card.memory * GIB for card in known_cards())
