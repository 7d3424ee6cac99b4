"""GPUs and host as NVML, CUDA, data sheets and the kernel describe them. Judges nothing, and imports no torch."""
