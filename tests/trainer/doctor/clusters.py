"""Clusters that are made up, of two nodes that are alike, and what the doctor says of them."""

import dataclasses
from typing import Any

from tests.trainer.doctor.machines import GIB, facts_of
from tinyzero_trainer.doctor.checks import examine
from tinyzero_trainer.doctor.facts import Facts, Requirements
from tinyzero_trainer.doctor.finding import Finding
from tinyzero_trainer.doctor.ray_facts import Inside, Node, Ray, Token

VERSIONS = {
    "tinyzero-sdk": "0.1.0",
    "tinyzero-trainer": "0.1.0",
    "torch": "2.13.0+cu130",
    "ray": "2.60.0",
    "tinyzero-countdown": "0.1.0",
}
INSIDE = Inside(
    "3.12.3",
    VERSIONS,
    16 * GIB,
    65536,
    ("NVIDIA H200",) * 8,
    "shared",
)
NODE = Node("10.0.0.1", "one", True, "", True, 32, 8, 30, 8, 9 * GIB, INSIDE)
OTHER = dataclasses.replace(NODE, address="10.0.0.2", host="two", head=False)
TOKEN = Token("token", "RAY_AUTH_TOKEN")
ADDRESS = "10.0.0.1:6379"


def inside(**changes: Any) -> Inside:
    return dataclasses.replace(INSIDE, **changes)


def with_ray(*nodes: Node, here: Inside = INSIDE, **changes: Any) -> Facts:
    """The facts of a machine that sees a Ray of these nodes."""
    ray = Ray(ADDRESS, nodes=nodes, here=here, directory="/data/runs")
    return facts_of(**{"ray": ray, "token": TOKEN} | changes)


def of_two(here: Inside = INSIDE, **changes: Any) -> Facts:
    """The second of two nodes is changed: what is of `Inside` there."""
    return with_ray(NODE, dataclasses.replace(OTHER, inside=inside(**changes)), here=here)


def bad(facts: Facts, requirements: Requirements = Requirements(address=ADDRESS)) -> list[Finding]:  # noqa: B008  # frozen
    usual = examine(facts_of(), Requirements())
    found = [finding for finding in examine(facts, requirements) if finding.level != "ok" and finding not in usual]
    assert all(finding.do for finding in found)
    return found


def only(facts: Facts, requirements: Requirements = Requirements(address=ADDRESS)) -> Finding:  # noqa: B008  # frozen
    [finding] = bad(facts, requirements)
    return finding


def of_gpus(*free: float, cpus: float = 32) -> list[Node]:
    """Nodes of eight GPUs, with so many free."""
    return [
        dataclasses.replace(OTHER, address=f"10.0.0.{place}", gpus_free=gpus, cpus_free=cpus)
        for place, gpus in enumerate(free, 1)
    ]
