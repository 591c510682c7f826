"""Serves prompts with `generate()` of transformers: a cache that grows by a token at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from torch_programs import llama
from torch_programs.llama import LlamaSizes
from torch_programs.program import Program


@dataclass(frozen=True)
class Sizes:
    llama: LlamaSizes
    requests: tuple[tuple[int, int, int], ...]
    """Batch, tokens of the prompt, tokens to generate."""


SIZES = {
    "full": Sizes(
        LlamaSizes(16, 2048, 5632, 16, 8, 32_000),
        ((4, 700, 10), (24, 1300, 12), (1, 1900, 8), (12, 250, 14), (17, 930, 6), (8, 1500, 10)),
    ),
    "tiny": Sizes(LlamaSizes(2, 32, 64, 4, 2, 100), ((2, 5, 4), (3, 9, 3))),
}


class Generation(Program):
    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(device)
        self.sizes = sizes
        config = LlamaConfig(
            vocab_size=sizes.llama.vocabulary,
            hidden_size=sizes.llama.width,
            intermediate_size=sizes.llama.inner,
            num_hidden_layers=sizes.llama.layers,
            num_attention_heads=sizes.llama.heads,
            num_key_value_heads=sizes.llama.key_heads,
            max_position_embeddings=4096,
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=0,
        )
        with device:
            self.model = llama.half(lambda: LlamaForCausalLM(config)).eval()
        self.models = [self.model]

    def round(self) -> Iterator[Tensor]:
        for items, length, more in self.sizes.requests:
            prompt = self.integers(self.sizes.llama.vocabulary, items, length)
            answer = self.model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                min_new_tokens=more,
                max_new_tokens=more,
            )
            places = torch.arange(1, more + 1, device=self.device)
            yield (answer[:, length:] * places).sum().double()


def build(size: str, device: torch.device) -> Program:
    return Generation(SIZES[size], device)
