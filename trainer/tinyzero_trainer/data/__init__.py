"""From a task's problems to prompts: splits, curriculum, mixture of tasks. Generating and scoring are elsewhere."""
