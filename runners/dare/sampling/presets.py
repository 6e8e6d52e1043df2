"""Published settings of every decoder, by name. Each takes the length of the window and, where free, of a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dare.sampling_config import SamplingConfig


def llada(gen_length: int = 256) -> SamplingConfig:
    """LLaDA-Instruct as pure diffusion: one token a step, the most probable first."""
    return SamplingConfig(gen_length=gen_length, block_length=gen_length, steps_per_block=gen_length)


def llada_blocks(gen_length: int = 256, block_length: int = 8) -> SamplingConfig:
    """LLaDA-Instruct semi-autoregressively, as for GSM8K; MATH has 512 tokens in blocks of 64."""
    return SamplingConfig(gen_length=gen_length, block_length=block_length, steps_per_block=block_length)


def llada_1_5(gen_length: int = 256, block_length: int = 16) -> SamplingConfig:
    """LLaDA 1.5, where ends of sequence are meant to come last: by the rule that its numbers were computed with."""
    return SamplingConfig(
        gen_length=gen_length, block_length=block_length, steps_per_block=block_length, eos_policy="legacy_eot"
    )


def fast_dllm(gen_length: int = 256, block_length: int = 32) -> SamplingConfig:
    """Fast-dLLM on LLaDA without cache: all tokens of confidence 0.9 and more at once."""
    return SamplingConfig(
        gen_length=gen_length,
        block_length=block_length,
        steps_per_block=block_length,
        selector="threshold",
        threshold=0.9,
    )


def fast_dllm_prefix(gen_length: int = 256, block_length: int = 32) -> SamplingConfig:
    """Fast-dLLM with the keys and values before the block kept."""
    return _changed(fast_dllm(gen_length, block_length), cache="prefix")


def fast_dllm_dual(gen_length: int = 256, block_length: int = 32) -> SamplingConfig:
    """Fast-dLLM with the keys and values before and behind the block kept."""
    return _changed(fast_dllm(gen_length, block_length), cache="dual")


def dream(gen_length: int = 256) -> SamplingConfig:
    """Dream-Instruct as its authors recommend: least entropy first, temperature 0.2, nucleus of 0.95."""
    return SamplingConfig(
        gen_length=gen_length,
        block_length=gen_length,
        steps_per_block=gen_length,
        temperature=0.2,
        top_p=0.95,
        remasking="entropy",
        schedule="timesteps",
        confidence="draw",
    )


def dream_greedy(gen_length: int = 256) -> SamplingConfig:
    """Dream on planning tasks and GSM8K: least entropy first, without temperature."""
    return SamplingConfig(
        gen_length=gen_length,
        block_length=gen_length,
        steps_per_block=gen_length,
        remasking="entropy",
        schedule="timesteps",
    )


def sdar_static(gen_length: int = 256, block_length: int = 4) -> SamplingConfig:
    """SDAR's published evaluation: greedy, one token a step."""
    return SamplingConfig(gen_length=gen_length, block_length=block_length, steps_per_block=block_length)


def sdar_dynamic(gen_length: int = 256, block_length: int = 4) -> SamplingConfig:
    """SDAR's fast decoding: all tokens above a confidence of 0.9, at least one."""
    return _changed(sdar_static(gen_length, block_length), selector="dynamic", threshold=0.9)


def sdar_sampled(gen_length: int = 256, block_length: int = 4) -> SamplingConfig:
    """The defaults of SDAR's script: temperature 1, threshold 0.85 on the distribution that is drawn from."""
    return _changed(
        sdar_static(gen_length, block_length), selector="dynamic", threshold=0.85, temperature=1.0, confidence="draw"
    )


def llada2(gen_length: int = 512, block_length: int = 32) -> SamplingConfig:
    """LLaDA2.0 as its card recommends, with temperature 0 as argmax; upstream draws at temperature 1 there."""
    return SamplingConfig(
        gen_length=gen_length,
        block_length=block_length,
        steps_per_block=block_length,
        selector="dynamic",
        threshold=0.95,
        early_stop="filled",
    )


def llada2_1_quality(gen_length: int = 512, block_length: int = 32) -> SamplingConfig:
    """LLaDA2.1 with editing, quality mode: 0.7 to commit, 0.5 to edit."""
    return _changed(llada2(gen_length, block_length), threshold=0.7, edit_threshold=0.5, early_stop="block")


def llada2_1_speed(gen_length: int = 512, block_length: int = 32) -> SamplingConfig:
    """LLaDA2.1 with editing, speed mode: 0.5 to commit, and every change of mind is an edit."""
    return _changed(llada2(gen_length, block_length), threshold=0.5, edit_threshold=0.0, early_stop="block")


def eoser(gen_length: int = 256) -> SamplingConfig:
    """Full diffusion with ends of sequence held back early in the decode (EOSER of CJ-GRPO)."""
    return _changed(llada(gen_length), eos_policy="eoser", eoser_minimum=0.4)


def ass(gen_length: int = 256) -> SamplingConfig:
    """EOSER with ascending step sizes, 1, 2, 4, ... tokens, and ends of sequence held back harder (CJ-GRPO)."""
    steps = gen_length.bit_length() - 1
    return _changed(
        llada(gen_length), schedule="ascending", steps_per_block=steps, eos_policy="eoser", eoser_minimum=0.01
    )


def _changed(config: SamplingConfig, **changes: object) -> SamplingConfig:
    return SamplingConfig.model_validate({**config.model_dump(), **changes})


PRESETS: Mapping[str, Callable[..., SamplingConfig]] = {
    preset.__name__: preset
    for preset in (
        llada, llada_blocks, llada_1_5, fast_dllm, fast_dllm_prefix, fast_dllm_dual, dream, dream_greedy,
        sdar_static, sdar_dynamic, sdar_sampled, llada2, llada2_1_quality, llada2_1_speed, eoser, ass,
    )
}  # fmt: skip
