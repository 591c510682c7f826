"""Trains the same Llama with activation checkpointing, which leaves room for larger batches."""

from dataclasses import replace

import torch

from torch_programs import llama_training
from torch_programs.program import Program

SIZES = {
    "full": replace(llama_training.SIZES["full"], checkpointed=True, tokens=8192, steps=12),
    "tiny": replace(llama_training.SIZES["tiny"], checkpointed=True),
}


def build(size: str, device: torch.device) -> Program:
    return llama_training.LlamaTraining(SIZES[size], device)
