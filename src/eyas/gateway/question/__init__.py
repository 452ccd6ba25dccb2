"""What every dialect needs to ask the model: sampling parameters, prompt limits, model names."""
