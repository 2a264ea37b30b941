"""Changed pairs for experiments: what a model learns when its teacher was of another kind."""
