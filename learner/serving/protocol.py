"""The engine contract: the part of vLLM 0.32's HTTP API that the platform uses, and what it looks like on the wire.

Tokens in, tokens out (vLLM: `entrypoints/scale_out/token_in_token_out/`):

* `POST /inference/v1/generate` with a `GenerateRequest`. An `X-Request-Id` header goes before `request_id`. Answers

      {"request_id": "generate-tokens-<id>", "model": …, "created": …, "usage": {"prompt_tokens", "completion_tokens",
       "total_tokens", "prompt_tokens_details": {"cached_tokens"}}, "output_mode": "tokens", "choices": [{"index": 0,
       "finish_reason": "stop" | "length" | "abort", "stop_reason": null | id, "token_ids": [id…],
       "weight_versions": [{"version", "start", "end"}…],
       "logprobs": null | {"content": [{"token_id", "logprob", "rank", "top_logprobs": [{same three}…]}…]}}]}

  `stop_reason` is the id out of `stop_token_ids`; null for the model's own end token. The stopping token is among
  `token_ids`. With `logprobs: n` each entry lists the sampled token and then the n likeliest.
* With `stream: true`: server-sent events `data: {…}` of the same shape without `model` and `created`, each choice
  with the tokens that are new; `weight_versions` stands only in the chunk with the `finish_reason` and covers the
  whole completion; with `stream_options.include_usage` a chunk without choices follows; then `data: [DONE]`.
* `POST /inference/v1/abort_requests {"request_ids": [...]}`, with the ids as *answered* (`generate-tokens-<id>`).
  An aborted request ends normally, with what it has, and `finish_reason: abort`. So does a client that hangs up.
* Errors: `{"error": {"message", "type", "param", "code"}}`; 400 for what cannot be done, 404 for another model.

Log-probabilities are of the distribution that the token was drawn from: after temperature, top-k and top-p (vLLM's
`--logprobs-mode processed_logprobs`). That is what training needs.

Weights (vLLM: `entrypoints/rl/online/`, `distributed/weight_transfer/`):

* `POST /pause?mode=keep&clear_cache=true`: no further step; requests wait. With `clear_cache`, vLLM's default, keys and
  values are dropped, and running requests compute theirs anew under the weights that they go on with; so the
  log-probability of a token is that of the version named beside it. `POST /resume` goes on.
* `POST /init_weight_transfer_engine {"init_info": {}}`, `/start_weight_update`,
  `/update_weights {"update_info": {"path": FOLDER}}`, `/finish_weight_update {"weight_version": NAME}`. A folder that
  does not fit changes nothing, answers an error (vLLM 500, the embedded engine 400), and ends the update.
* `POST /update_weight_version {"new_version": NAME}` renames; `GET /weight_info` answers `{"weight_version": NAME}`.

`GET /health` 200 when alive; `GET /metrics` Prometheus text with vLLM's names; `GET /livez`, `GET /readyz` as all our
services.
"""

import msgspec

REQUEST_ID_PREFIX = "generate-tokens-"
MAX_LOGPROBS = 20


class SamplingParams(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """How the tokens of one request are drawn. The fields after `ignore_eos` must have their neutral value."""

    max_tokens: int | None = None
    """Most tokens; null: as many as the context holds."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Nucleus mass in (0, 1]; 1 is off."""
    top_k: int = 0
    """Candidates kept; 0 and -1 are off."""
    seed: int | None = None
    """Makes the draw repeatable."""
    logprobs: int | None = None
    """Null: no log-probabilities; n: of the sampled token and of the n likeliest."""
    stop_token_ids: list[int] | None = None
    """Ids that end the completion, beside the model's own."""
    ignore_eos: bool = False
    """Go on past the model's own end token."""
    n: int = 1
    min_p: float = 0.0
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: list[str] | str | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What a stream carries beside tokens."""

    include_usage: bool = False


class GenerateRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Body of `POST /inference/v1/generate`."""

    token_ids: list[int]
    """The whole prompt."""
    sampling_params: SamplingParams
    model: str | None = None
    """Null or the served name."""
    request_id: str | None = None
    """The caller's name for the request; one is made up if there is none."""
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    output_mode: str = "tokens"
