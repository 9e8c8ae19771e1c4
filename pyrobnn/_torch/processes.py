"""This process among the processes started by torchrun."""

import os

import torch.distributed as dist


def is_main_process() -> bool:
    """Return whether this process is the only or first process, which writes files and reports."""
    return (dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))) == 0


def num_processes() -> int:
    """Return how many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
