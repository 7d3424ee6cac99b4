"""What NVML, CUDA and the data sheets say about GPUs, and what the host has. Judges nothing, and imports no torch."""
