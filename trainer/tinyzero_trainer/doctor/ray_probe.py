"""What Ray and its nodes say, for cluster_probe.py: run as a script in a process of its own, which may be ended.

Ray takes over signal handlers, prints, and may wait for minutes; here that is nobody's trouble. As in torch_probe.py,
each stage adds to a mapping and prints it as a line of JSON, and the last line that came out is what is known.
"""

import json
import logging
import os
import sys
from typing import Any

from tinyzero_trainer.doctor import node_probe

ANSWER_SECONDS = 25.0
"""For all nodes together, each of which starts a process first."""


def main(asked: dict[str, Any]) -> None:
    """Look, and tell.

    Args:
        asked: `address`, and `look`: what `node_probe.look` takes.
    """
    back = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever Ray prints goes to stderr

    def tell(seen: dict[str, Any]) -> None:
        print(json.dumps(seen), file=back, flush=True)

    seen: dict[str, Any] = {"stage": "connect"}
    tell(seen)
    try:
        ray = _connect(asked["address"])
    except Exception as error:  # the border to a library and to a network
        tell({"connect_error": "\n".join(_chain(error))})
        return
    seen |= {"stage": "nodes", "address": ray.get_runtime_context().gcs_address}
    tell(seen)
    nodes = _nodes(ray)
    seen |= {"stage": "inside", "here": node_probe.look(*asked["look"]), "nodes": list(nodes.values())}
    tell(seen)
    _ask_nodes(ray, {key: node for key, node in nodes.items() if node["alive"]}, asked["look"])
    del seen["stage"]
    tell(seen)


def _connect(address: str) -> Any:
    from tinyzero_trainer.executors.ray.cluster import import_ray

    ray = import_ray()
    logging.getLogger("ray").setLevel(logging.ERROR)
    ray.init(address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    return ray


def _chain(error: BaseException | None) -> list[str]:
    """What an error says, and those that are behind it."""
    said = []
    while error is not None:
        said.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return said


def _nodes(ray: Any) -> dict[str, dict[str, Any]]:
    """Fields of `Node`, by Ray's name for it."""
    free = ray._private.state.available_resources_per_node()
    found = {}
    for node in ray.nodes():
        there, left = node["Resources"], free.get(node["NodeID"], {})
        found[node["NodeID"]] = {
            "address": node["NodeManagerAddress"],
            "host": node["NodeManagerHostname"],
            "alive": node["Alive"],
            "reason": "" if node["Alive"] else _first_line(node.get("DeathReasonMessage") or ""),
            "head": "node:__internal_head__" in there,
            "cpus": there.get("CPU", 0.0),
            "gpus": there.get("GPU", 0.0),
            "cpus_free": left.get("CPU", 0.0),
            "gpus_free": left.get("GPU", 0.0),
            "store": int(there.get("object_store_memory", 0)),
        }
    return found


def _ask_nodes(ray: Any, nodes: dict[str, dict[str, Any]], look: list[Any]) -> None:
    """Add `inside` or `error` to each, by a task on it that takes nothing of what it has to give."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.cloudpickle.register_pickle_by_value(node_probe)
    task = ray.remote(node_probe.look)
    calls = {}
    for key in nodes:
        there = NodeAffinitySchedulingStrategy(key, soft=False)
        calls[key] = task.options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(*look)
    done, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=ANSWER_SECONDS)
    for key, call in calls.items():
        if call not in done:
            nodes[key]["error"] = f"no answer within {ANSWER_SECONDS:g} s"
            ray.cancel(call, force=True)
            continue
        try:
            nodes[key]["inside"] = ray.get(call)
        except Exception as error:  # whatever may go wrong on another machine
            nodes[key]["error"] = _first_line(str(getattr(error, "cause", None) or error))


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
