"""OpenCompass's prompts in our own form: dialogues, and the texts of a perplexity parted where its choices differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dare.tasks import Dialogue

ROLES = {"HUMAN": "user", "BOT": "assistant", "SYSTEM": "system"}


def as_dialogue(prompt: str | Sequence[Mapping[str, str]]) -> Dialogue:
    """A prompt in our own form. Turns of one role in a row are one, as in OpenCompass's chat models."""
    if isinstance(prompt, str):
        return prompt
    messages: list[dict[str, str]] = []
    for turn in prompt:
        role, content = ROLES[turn["role"]], turn["prompt"]
        if not content:
            continue
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += "\n" + content
        else:
            messages.append({"role": role, "content": content})
    return tuple(messages)


def splits(texts: Sequence[str]) -> tuple[str, list[str]]:
    """What texts of one question have in common, up to a gap between words, and how each goes on.

    The gap belongs to what follows, as tokenizers have it.
    """
    shortest = min(map(len, texts))
    common = next((place for place in range(shortest) if len({text[place] for text in texts}) > 1), shortest)
    begin = texts[0][:common]
    if common == shortest:  # one is the beginning of another
        begin = begin[:-1]
    words = begin.rstrip()
    if words == begin:  # in the middle of a word
        words = words[: len(words) - len(words.split()[-1])].rstrip() if words.split() else ""
    return words, [text[len(words) :] for text in texts]
