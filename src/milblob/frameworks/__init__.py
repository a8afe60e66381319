"""Weights as tensors of PyTorch, JAX and MLX: milblob.torch, milblob.jax and milblob.mlx; and `safe_open`."""
