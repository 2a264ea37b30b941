"""The transformer: its shape, its forward, its text, and its files.

    model_config.py   the shape of a model, from its config.json
    model.py          one transformer for all families
    attention.py      causal attention over packed sequences
    lora.py           linear layers that learn a correction of low rank
    tokenizer.py      text to token ids and back, and the chat template
    weights.py        a Hugging Face folder into a model, and a model into such a folder
    tensor_files.py   a safetensors file, and which rows of it a rank has

Who may import it. Everyone but the executor may. It imports `kernels` and config.py only, and knows nothing
of runs, samples or ranks.
"""
