"""The doctor looks at a real Ray with real GPUs."""

from importlib import metadata
from pathlib import Path

import pytest
import torch

from tests.trainer.doctor.machines import facts_of
from tests.trainer.processes import apart
from tinyzero_trainer.doctor.checks import examine
from tinyzero_trainer.doctor.cluster_probe import look_at_ray
from tinyzero_trainer.doctor.facts import Requirements
from tinyzero_trainer.doctor.ray_facts import Placement, Ray

pytestmark = pytest.mark.gpu


def of_one_node(directory: str) -> Ray:
    """What is seen of a Ray that has counted the GPUs itself."""
    from ray.cluster_utils import Cluster

    given = {"num_cpus": 16, "object_store_memory": 2**28, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=given)
    try:
        return look_at_ray(cluster.address, directory=Path(directory), model="")
    finally:
        cluster.shutdown()


def test_the_gpus_of_a_node(tmp_path: Path) -> None:
    count = torch.cuda.device_count()
    ray = apart(of_one_node, tmp_path, str(tmp_path))
    print(ray)
    assert (ray.trouble, ray.error) == ("", "")
    [node] = ray.nodes
    assert (node.error, node.gpus, node.gpus_free) == ("", count, count)
    assert node.inside is not None
    # All of the driver's, though the task that asked was given none.
    assert node.inside.gpus is not None
    assert {torch.cuda.get_device_name(place) for place in range(count)} <= set(node.inside.gpus)
    assert node.inside.packages["torch"] == metadata.version("torch")
    for gpus, level in ((count, "ok"), (count + 1, "error")):
        requirements = Requirements(address=ray.address, placement=Placement(gpus, 0, 1, 1))
        [layout] = [finding for finding in examine(facts_of(ray=ray), requirements) if finding.check == "layout"]
        assert layout.level == level, layout
