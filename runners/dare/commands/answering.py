"""The commands `dare generate` and `dare serve`: their options, and what a person sees of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dare.commands.terminal import Counting, at_least, console, pairs, refuse, say
from dare.commands.text import neutral

if TYPE_CHECKING:
    from dare.generate import Answer, Prompt
    from dare.policy import Policy
    from dare.sampling_config import SamplingConfig

Checkpoint = Annotated[str, typer.Option(help="A backbone of the catalog, or a checkpoint folder.")]
Weights = Annotated[Path | None, typer.Option(help="A trained policy instead of the backbone's own weights.")]
Decoding = Annotated[
    list[str] | None, typer.Option("--set", help="Decoding setting=value, repeatable, for example threshold=0.9.")
]
Preset = Annotated[str | None, typer.Option(help="Published settings, for example fast_dllm; --set goes on top.")]
Dtype = Annotated[Literal["float32", "bfloat16", "float16"], typer.Option(help="Of the weights and every forward.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto takes a GPU where there is one.")]

EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="What decodes instead of our own decoder: sglang (in this process), sglang@http://HOST:PORT or "
        "lmdeploy:VERSION@http://HOST:PORT (servers that run already, with the same checkpoint). What it cannot do is "
        "said before anything loads; see docs/engines.md.",
        rich_help_panel="Inference engine",
    ),
]
EngineArguments = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-set",
        help="Argument=value of an engine in this process, repeatable, for example tp_size=2.",
        rich_help_panel="Inference engine",
    ),
]
EngineKey = Annotated[
    str | None,
    typer.Option(
        envvar="DARE_ENGINE_KEY",
        help="What the engine's server asks for; better by DARE_ENGINE_KEY.",
        rich_help_panel="Inference engine",
    ),
]
Unseeded = Annotated[
    bool,
    typer.Option(
        "--unseeded",
        help="Accept that sampled answers do not repeat, from an engine whose requests carry no seed.",
        rich_help_panel="Inference engine",
    ),
]


@dataclass(frozen=True)
class AskedEngine:
    """The options about an engine, as they were given."""

    name: str | None
    arguments: dict[str, Any]
    key: str | None = field(repr=False)
    unseeded: bool


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(generate)
    app.command()(serve)


def generate(
    prompt: Annotated[list[str] | None, typer.Argument(help="Prompts, for example S0321003004002100.")] = None,
    file: Annotated[
        str | None,
        typer.Option(help="Prompts from FILE: .jsonl (prompt or messages, id), else one a line; - is stdin."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Append answers to this JSONL file; prompts that have one are skipped.")
    ] = None,
    backbone: Checkpoint = "llada-tiny",
    weights: Weights = None,
    gen_length: Annotated[int | None, typer.Option(help="Tokens of the window.")] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising steps per block.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy, and the default.")] = None,
    preset: Preset = None,
    set_: Decoding = None,
    seed: int = 0,
    batch: Annotated[int, typer.Option(help="Prompts decoded together: speed and memory, never the answers.")] = 16,
    json_: Annotated[bool, typer.Option("--json", help="Answers as JSON lines, with ids, step map and NFE.")] = False,
    animate: Annotated[
        bool | None, typer.Option(help="Show the canvas of a single prompt on a terminal: unless an engine decodes.")
    ] = None,
    delay: Annotated[float, typer.Option(help="Seconds between two pictures of the canvas.")] = 0.08,
    frames: Annotated[
        Path | None, typer.Option(help="Record the canvas of a single prompt: text, or an asciicast for FILE.cast.")
    ] = None,
    dtype: Dtype = "float32",
    device: Device = "auto",
    engine: EngineName = None,
    engine_set: EngineArguments = None,
    engine_key: EngineKey = None,
    unseeded: Unseeded = False,
) -> None:
    """Answer prompts. With a single prompt on a terminal its canvas is shown while it is denoised.

    `dare generate S0321003004002100` · `dare generate --file prompts.jsonl --out answers.jsonl`
    """
    from dare.generate import given_prompts, prompts_of
    from dare.policy import RequestError

    if bool(prompt) == (file is not None):
        refuse("give either prompts or --file, not both" if prompt else "there is no prompt: give one, or --file FILE")
    at_least(1, batch=batch)
    at_least(0, delay=delay)
    given = {"gen_length": gen_length, "steps_per_block": steps, "temperature": temperature}
    settings = {name: value for name, value in given.items() if value is not None} | pairs(set_ or [])
    try:
        prompts = prompts_of(file) if file is not None else given_prompts(prompt or [])
        if frames is not None and (len(prompts) > 1 or out is not None):
            refuse("--frames records the canvas of a single prompt, and goes without --out")
        if engine is not None and (frames is not None or animate):
            option = "--frames" if frames is not None else "--animate"
            refuse(f"{option} shows the canvas between its steps, and an engine returns it when it is finished")
        asked = AskedEngine(engine, pairs(engine_set or [], "--engine-set"), engine_key, unseeded)
        animated = engine is None and animate is not False and _can_animate()
        with _policy(backbone, weights, dtype, device, preset, settings, asked, prompts) as policy:
            config = policy.sampling
            if out is not None:
                _into_file(policy, prompts, config, seed, batch, out, json_)
            elif len(prompts) == 1 and (frames is not None or (animated and not json_)):
                _animated(policy, prompts[0], config, seed, json_, weights, delay if animated else None, frames)
            else:
                _printed(policy, prompts, config, seed, batch, json_)
    except RequestError as error:
        refuse(error)
    except KeyboardInterrupt:
        say("Interrupted." if out is None else f"Interrupted. {out} keeps what it has: run it again to continue.")
        raise typer.Exit(130) from None


@contextmanager
def _policy(
    backbone: str,
    weights: Path | None,
    dtype: str,
    device: str,
    preset: str | None,
    settings: dict[str, Any],
    asked: AskedEngine,
    prompts: Sequence[Prompt] = (),
) -> Iterator[Policy]:
    """The policy with the settings that were asked for: loaded here, or decoded by an engine while it is used."""
    from dare.generate import encode
    from dare.policy import RequestError, decoded_by, open_policy
    from dare.sampling.engines import ChoiceError
    from dare.sampling.engines.choice import parse_choice

    choice = None
    if asked.name is not None:
        try:
            choice = parse_choice(asked.name)
        except ChoiceError as error:
            raise RequestError(str(error)) from error
        if dtype != "float32" or device != "auto":
            raise RequestError("--dtype and --device are our own decoder's: an engine is started with its own")
    elif asked.arguments or asked.unseeded:
        raise RequestError("--engine-set and --unseeded say something of an engine: name it by --engine")
    policy = open_policy(backbone, weights, dtype=dtype, device=device, with_weights=choice is None)
    policy = (policy if preset is None else policy.with_preset(preset, settings)).with_settings(settings)
    if choice is None:
        yield policy
        return
    encode(policy, prompts, policy.sampling)  # a prompt that does not fit is named before an engine loads for minutes
    seeded, arguments = not asked.unseeded, asked.arguments
    with decoded_by(choice, policy, seeded=seeded, arguments=arguments, api_key=asked.key) as decoded:
        yield decoded


def _can_animate() -> bool:
    return console.is_terminal and not console.is_dumb_terminal


def _animated(
    policy: Policy,
    prompt: Prompt,
    config: SamplingConfig,
    seed: int,
    as_json: bool,
    weights: Path | None,
    delay: float | None,
    frames: Path | None,
) -> None:
    """The canvas on stderr unless `delay` is None, into `frames` if given; then the answer on stdout."""
    from dare.commands.animation import Animation, Recording, Scene, mask_width
    from dare.generate import answers, encode

    encoded = encode(policy, [prompt], config)
    tokenizer = policy.backbone.tokenizer
    scene = Scene(
        tokenizer=tokenizer,
        eos_ids=frozenset(policy.backbone.eos_ids),
        prompt=prompt.text,
        title=policy.name if weights is None else f"{policy.name} · {weights}",
        subtitle=f"{config.gen_length} tokens in blocks of {config.block_length}",
        length=config.gen_length,
        mask_width=mask_width(tokenizer, policy.text(prompt.text)),
    )
    with (
        nullcontext() if frames is None else Recording(frames, delay) as recording,
        Animation(scene, None if delay is None else console, delay or 0.0, recording) as animation,
    ):
        [(made, samples)] = answers(policy, [prompt], encoded, config, seed, 1, as_json, animation.watch)
        animation.conclude(samples)
    _print(made, as_json)


def _printed(
    policy: Policy, prompts: list[Prompt], config: SamplingConfig, seed: int, batch: int, as_json: bool
) -> None:
    from dare.generate import answers, encode

    encoded = encode(policy, prompts, config)
    for made, _ in answers(policy, prompts, encoded, config, seed, batch, as_json):
        _print(made, as_json)


def _print(made: list[Answer], as_json: bool) -> None:
    for answer in made:
        typer.echo(answer.line(ascii_only=True) if as_json else neutral(answer.answer))


def _into_file(
    policy: Policy, prompts: list[Prompt], config: SamplingConfig, seed: int, batch: int, out: Path, details: bool
) -> None:
    """Answer what `out` does not answer yet."""
    from dare.generate import AnswersFile, answers, decoding_name, encode

    with AnswersFile(out, decoding_name(policy, config, seed)) as file:
        missing = file.missing(prompts)
        encoded = encode(policy, missing, config)
        tokens = 0
        forwards: int | None = 0
        started = time.monotonic()
        with Counting(len(prompts), len(prompts) - len(missing)) as counting:
            for made, _ in answers(policy, missing, encoded, config, seed, batch, details):
                file.add(made)
                tokens += sum(answer.tokens for answer in made)
                for answer in made:
                    forwards = None if forwards is None or answer.nfe is None else forwards + answer.nfe
                words = f"{tokens / max(time.monotonic() - started, 1e-9):,.0f} tokens/s"
                words += "" if forwards is None else f" · {tokens / max(forwards, 1):.2f} tokens/forward"
                counting.advance(len(made), words)
    before = "" if len(missing) == len(prompts) else f", {len(prompts) - len(missing)} of them from before"
    say(f"{out}: {len(prompts)} {'answer' if len(prompts) == 1 else 'answers'}{before}.")


def serve(
    backbone: Checkpoint = "llada-tiny",
    weights: Weights = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Listen on an address that others reach; needs a key.")
    ] = False,
    api_key: Annotated[
        str | None, typer.Option(envvar="DARE_API_KEY", help="What every request must bring; better by DARE_API_KEY.")
    ] = None,
    preset: Preset = None,
    set_: Decoding = None,
    batch: Annotated[int, typer.Option(help="Rows decoded together: speed and memory, never the answers.")] = 16,
    queue: Annotated[int, typer.Option(help="Rows that may wait; more are refused with status 429.")] = 256,
    dtype: Dtype = "float32",
    device: Device = "auto",
    engine: EngineName = None,
    engine_set: EngineArguments = None,
    engine_key: EngineKey = None,
    unseeded: Unseeded = False,
) -> None:
    """Serve one policy in the shapes of OpenAI's API: chat, completions, streaming; and likelihoods of choices.

    When it answers it prints one line `serving NAME at URL`. `dare serve --port 0 --set threshold=0.9`
    """
    from dare.policy import RequestError
    from dare.server.app import Limits, listen, run_server

    at_least(1, batch=batch, queue=queue)
    settings = pairs(set_ or [])
    asked = AskedEngine(engine, pairs(engine_set or [], "--engine-set"), engine_key, unseeded)
    try:
        with (
            listen(host, port, allow_remote, api_key) as listening,
            _policy(backbone, weights, dtype, device, preset, settings, asked) as policy,
        ):
            run_server(policy, listening, Limits(batch=batch, queue=queue), api_key, lambda line: typer.echo(line))
    except RequestError as error:
        refuse(error)
