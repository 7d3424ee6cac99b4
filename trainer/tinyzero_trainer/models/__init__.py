"""Language models: loading, LoRA, fused log-probabilities; without torch their sizes and files. No training."""
