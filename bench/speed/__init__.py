"""Speed, memory and numbers of the model, the sampler and training."""
