"""Read a log with the published inspect_ai, in the three ways its viewer and data frames do; prints what it found."""

import json
import sys


def main() -> None:
    from inspect_ai.log import read_eval_log, read_eval_log_sample, read_eval_log_sample_summaries

    path = sys.argv[1]
    log, summaries = read_eval_log(path), read_eval_log_sample_summaries(path)
    last = read_eval_log_sample(path, id=2, epoch=2)
    assert log.samples
    assert log.results
    found = {
        "header": [log.status, log.eval.task, log.eval.model, log.eval.config.epochs],
        "temperature": log.eval.model_generate_config.temperature,
        "samples": sorted([sample.id, sample.epoch] for sample in log.samples),
        "summaries": [[each.id, each.epoch, each.scores["correct"].value] for each in summaries],
        "metrics": {
            score.name: {name: round(metric.value, 6) for name, metric in score.metrics.items()}
            for score in log.results.scores
        },
        "last": {
            "input": last.input[0].text,
            "target": last.target,
            "completion": last.output.completion,
            "stop": last.output.choices[0].stop_reason,
            "tokens": last.output.usage.output_tokens,
            "answer": last.scores["correct"].answer,
            "reason": last.scores["correct"].explanation,
            "score": last.scores["score"].as_float(),
            "parts": last.scores["score"].metadata,
            "key": last.metadata["key"],
        },
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
