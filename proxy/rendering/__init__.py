"""From messages to token ids and back, with the model's own tokenizer and chat template."""
