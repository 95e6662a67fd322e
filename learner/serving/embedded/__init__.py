"""The engine where there is no GPU server: transformers' model, a decode loop of our own, HTTP in the same process.

`model` computes one packed step, `sampler` draws, `scheduler` decides who takes part, `loop` runs it in a thread,
`server` speaks the contract.
"""
