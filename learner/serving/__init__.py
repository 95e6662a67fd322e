"""Serves the policy: token ids in, token ids and log-probabilities out, each stretch with its policy version.

One contract (`learner.serving.protocol`: vLLM's token API and weight update), two engines:

* `embedded/`: on transformers, in this process, where there is no GPU;
* `vllm/`: a vLLM server as child process, in an environment of its own.

Beside either runs the follower, which reads policies.v1 and loads each new version. It speaks only the contract.
"""
