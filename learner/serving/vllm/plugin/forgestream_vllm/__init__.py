"""What forgestream adds to vLLM. Runs in vLLM's processes and environment; imports nothing else of the project.

vLLM finds it by the entry points in the dist-info folder beside it: whoever starts vLLM puts the parent of both on
PYTHONPATH and names `forgestream` in VLLM_PLUGINS.
"""
