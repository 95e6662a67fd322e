"""From a request to the prompt that the engine gets: continued where a recorded conversation goes on, else whole."""

import asyncio
from array import array

import msgspec
from structlog.typing import FilteringBoundLogger

from proxy.conversation import Conversation
from proxy.errors import BridgeRefused, Problem, RequestError
from proxy.metrics import ProxyMetrics
from proxy.recorder import Prompt, Recorder
from proxy.rendering.renderer import Renderer, context_exceeded
from proxy.sessions.chains import Chains, Match

_LONG_CHARS = 30_000  # more than that is tokenised beside the event loop, which other calls need
_encode = msgspec.json.Encoder().encode


class Prompter:
    """Makes prompts."""

    def __init__(
        self, renderer: Renderer, recorder: Recorder, metrics: ProxyMetrics, log: FilteringBoundLogger
    ) -> None:
        self._renderer = renderer
        self._recorder = recorder
        self._metrics = metrics
        self._log = log

    async def prompt(self, chains: Chains, conversation: Conversation) -> Prompt:
        """The prompt for a conversation of an attempt.

        Raises:
            RequestError: the template does not take it, or it is nested too deeply.
            DeliveryError: the log takes no blobs.
        """
        try:
            return await self._prompt(chains, conversation)
        except RecursionError as error:  # tools or arguments that nest for the sake of nesting
            raise RequestError(Problem.INVALID_REQUEST, "the request is nested too deeply") from error

    async def _prompt(self, chains: Chains, conversation: Conversation) -> Prompt:
        match = chains.match(conversation)
        if match.node is not None:
            try:
                return await self._continued(conversation, match)
            except BridgeRefused as refused:
                self._metrics.prompts.labels("refused").inc()
                self._log.info("bridge refused", parent_id=match.node.completion_id, reason=str(refused))
        else:
            self._metrics.prompts.labels("root").inc()
        return await self._whole(conversation, match)

    async def _continued(self, conversation: Conversation, match: Match) -> Prompt:
        parent = match.node
        assert parent is not None
        sequence = parent.sequence()
        arguments = (conversation, match.first_new, sequence)
        if _chars(conversation, match.first_new) > _LONG_CHARS:
            ids = await asyncio.to_thread(self._renderer.continued, *arguments)
        else:
            ids = self._renderer.continued(*arguments)
        self._metrics.prompts.labels("forked" if parent.children else "continued").inc()
        return Prompt(
            ids=ids,
            new_ids=array("i", ids[len(sequence) :]),
            match=match,
            parent=parent,
            first_new=match.first_new,
            system_blob=parent.system_blob,
            tools_blob=parent.tools_blob,
        )

    async def _whole(self, conversation: Conversation, match: Match) -> Prompt:
        if _chars(conversation, 0) > _LONG_CHARS:
            ids = await asyncio.to_thread(self._renderer.whole, conversation)
        else:
            ids = self._renderer.whole(conversation)
        system, tools = conversation.system_prompt, conversation.tools
        return Prompt(
            ids=ids,
            new_ids=array("i", ids),
            match=match,
            parent=None,
            first_new=0,
            system_blob=self._recorder.blob(system.encode(), "text/plain; charset=utf-8") if system else None,
            tools_blob=self._recorder.blob(_encode(tools), "application/json") if tools else None,
        )

    def completion_tokens(self, prompt: Prompt, *wanted: int | None) -> int:
        """How many tokens may be sampled: the least that is wanted (None and 0: no wish) and that fits the context.

        Raises:
            RequestError: the prompt alone fills the context.
        """
        left = self._renderer.context_tokens - len(prompt.ids)
        if left <= 0:
            raise context_exceeded(self._renderer.context_tokens, len(prompt.ids))
        return min([left, *(limit for limit in wanted if limit)])


def _chars(conversation: Conversation, first: int) -> int:
    return sum(len(message.content) for message in conversation.messages[first:])
