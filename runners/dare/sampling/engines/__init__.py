"""Inference engines behind the protocol of our own decoders: token ids in, `Samples` out, or a refusal beforehand.

`capabilities` is what each engine can do, as data, checked before weights load; `sampler` is what all have in common;
`sglang`, `lmdeploy` and `vllm` translate a `SamplingConfig` and speak to one engine each; `server` is JSON over HTTP;
`choice` reads what a person writes and starts it; `probe` asks a running engine whether it does what it says. No engine
is imported before it is asked for.
"""


class EngineError(RuntimeError):
    """Base of everything an inference engine can do to us."""


class ChoiceError(EngineError):
    """What was written names no engine that can be asked."""


class UnsupportedRequestError(EngineError):
    """The engine cannot honour the request; known before it loads anything."""


class EngineMissingError(EngineError):
    """The engine is not installed."""


class EngineDiedError(EngineError):
    """The engine is not running, or stopped while a request was with it."""


class EngineTimeoutError(EngineError):
    """The engine did not answer in time."""


class EngineReplyError(EngineError):
    """The engine refused the request, or its answer is no completion of it."""


class ProbeError(EngineError):
    """The engine runs and does not do what it says."""
