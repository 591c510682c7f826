"""The names of the programs, for who does not want to import PyTorch."""

# A name is that of the file with the program; the words are those of the docs' table.
PROGRAMS = {
    "llama_training": "Llama, training: batch 1 to 8, 128 to 2,048 tokens",
    "llama_checkpointing": "... with activation checkpointing",
    "adapters": "Llama, frozen, with LoRA: training, evaluation between",
    "mixture_of_experts": "mixture of experts: tokens of each expert vary",
    "encoder_decoder": "encoder-decoder: 8 to 320 tokens on both sides",
    "generation": "`generate()` with a growing cache, batch 1 to 24",
    "continuous_batching": "continuous batching: requests come and go, caches grow",
    "detection": "detection: 480 to 1,088 pixels, 5 to 300 boxes, suppression",
    "image_classification": "ResNet-50, 160 to 320 pixels",
    "segmentation": "segmentation, 256 to 768 pixels",
    "diffusion": "diffusion U-Net: training and sampling, 32 to 112 a side",
    "lstm_text": "LSTM, lengths 10 to 400",
    "graph_network": "graph network, 100,000 to 800,000 edges",
}
