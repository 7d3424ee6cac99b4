"""Run within an environment that has verifiers, beside `countdown_env.py`: its loader, and rollouts it scores."""

import asyncio
import json
import sys
from pathlib import Path


def main():
    import verifiers.v1 as vf

    from tinyzero_sdk.adapters.scorer import Scorer

    asked, original = [], Scorer.score

    def counted(self, completions, ground_truths):
        asked.extend(completions)
        return original(self, completions, ground_truths)

    Scorer.score = counted
    sys.path.insert(0, str(Path.cwd()))
    config = vf.resolve_env_config({"taskset": {"id": "countdown-env", "size": 4, "seed": 3}})
    environment = vf.load_environment(config)
    tasks = list(environment.taskset)
    results = [asyncio.run(score(task, text)) for task in tasks for text in (gold(task), "<answer>1</answer>", "7")]
    first = tasks[0].data
    print(
        json.dumps(
            {
                "environment": type(environment).__name__,
                "prompts": [task.data.prompt_text for task in tasks],
                "saved": first.model_dump(mode="json")["ground_truth"] == first.ground_truth,
                "results": results,
                "asked": len(asked),
            }
        )
    )


def gold(task):
    from tinyzero_sdk import Item, load_task

    truth = task.data.ground_truth
    return load_task("countdown").solve(Item(truth, {"nums": truth["numbers"], "target": truth["target"]})) or ""


async def score(task, reply):
    """A rollout of one turn, as the null harness would leave it, scored by verifiers."""
    import verifiers.v1 as vf

    trace = vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=[
            vf.MessageNode(message=vf.UserMessage(content=task.data.prompt_text), parent=None, sampled=False),
            vf.MessageNode(message=vf.AssistantMessage(content=reply), parent=0, sampled=True),
        ],
    )
    await task.score(trace)
    return {"reward": trace.reward, "metrics": trace.metrics}


if __name__ == "__main__":
    main()
