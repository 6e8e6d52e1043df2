"""Which language a text is written in: its script, and between languages of one script the words that hold it together.

Deterministic and without a model. A text without any such word is of every language of its script: too short to tell.
"""

from __future__ import annotations

import re
from collections import Counter

_SCRIPTS = {
    "latin": ((0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x1E00, 0x1EFF)),
    "cyrillic": ((0x400, 0x52F),),
    "arabic": ((0x600, 0x6FF), (0x750, 0x77F), (0xFB50, 0xFDFF), (0xFE70, 0xFEFF)),
    "devanagari": ((0x900, 0x97F),),
    "bengali": ((0x980, 0x9FF),),
    "gurmukhi": ((0xA00, 0xA7F),),
    "gujarati": ((0xA80, 0xAFF),),
    "tamil": ((0xB80, 0xBFF),),
    "telugu": ((0xC00, 0xC7F),),
    "kannada": ((0xC80, 0xCFF),),
    "thai": ((0xE00, 0xE7F),),
    "hangul": ((0x1100, 0x11FF), (0x3130, 0x318F), (0xAC00, 0xD7AF)),
    "han": ((0x3040, 0x30FF), (0x4E00, 0x9FFF)),
}
_WORDS = {
    "latin": {
        "en": "the of and to in is that it for was on with as are be this you not have from by or an at will can my",
        "de": "der die das und ist nicht ein eine zu den mit von für auf ich es sich auch im dem wird sind des wie",
        "fr": "le la les des et est un une pour que dans qui pas sur avec il au ce du nous vous sont",
        "es": "el la los las de y es un una que en por con para no se su como del más está",
        "pt": "o a os as de e é um uma que em por com para não se do da no na dos das mais você ao são",
        "it": "il la di che e è un una per in non con si del della le i sono gli da più come anche",
        "nl": "de het een en van is niet op te dat die voor met zijn aan ook er",
        "sv": "och att det är en som på för med av inte den jag till ett",
        "fi": "ja on ei se että oli hän mutta kun ovat joka tai myös voi olla niin hänen sen ole",
        "sw": "na ya wa kwa ni katika za la hii kuwa cha yake watu hiyo yangu kama sana pia huo vya",
        "vi": "và là của có không một được cho những trong người các với này đã tôi bạn để khi",
    },
    "cyrillic": {
        "ru": "и в не на что он с как это по но из у за от так же все для был ты вы мы его",
        "bg": "и в не на че той с като това по но от за са се да е във ще си как към вие което",
    },
    "arabic": {
        "ar": "في من على إلى أن هذا هذه التي الذي ما لا كان مع عن هو هي ذلك كل أو",
        "fa": "و در به از که این را با است برای آن های می یک تا شما بود خود ما",
        "ur": "کے کی میں ہے اور سے کا کو پر یہ نے ہیں کہ ایک بھی اس ہو تھا آپ ہم",
    },
    "devanagari": {
        "hi": "के में है की और से का को पर यह ने हैं कि एक भी इस हो था आप हम नहीं लिए",
        "mr": "आहे आणि च्या ते हे मध्ये आहेत तर नाही होते एक या साठी की त्या आपण मी होता करा पण",
        "ne": "छ र को मा हो यो लागि छन् पनि गर्न भएको थियो लाई छैन हुन्छ तपाईं म हामी गर्नुहोस् एक",
    },
}
_ONLY = {
    "bengali": "bn",
    "gurmukhi": "pa",
    "gujarati": "gu",
    "tamil": "ta",
    "telugu": "te",
    "kannada": "kn",
    "thai": "th",
    "hangul": "ko",
}
_FUNCTION_WORDS = {
    script: {language: frozenset(words.split()) for language, words in languages.items()}
    for script, languages in _WORDS.items()
}
LANGUAGES = frozenset(_ONLY.values()) | {language for languages in _WORDS.values() for language in languages}
"""ISO 639-1 codes of the languages that can be told."""
_SPLIT = re.compile(r"[\s.,;:!?()\[\]{}\"'«»“”‘’…।؟،۔*_#/|\\-]+")


def languages_of(text: str) -> frozenset[str]:
    """The languages that the text may be written in: one, or several where nothing tells them apart, or none."""
    scripts = Counter(filter(None, map(_script, text)))
    if not scripts:
        return frozenset()
    script = scripts.most_common(1)[0][0]
    if script in _ONLY:
        return frozenset({_ONLY[script]})
    words = Counter(_SPLIT.split(text.casefold()))
    hits = {language: sum(words[word] for word in known) for language, known in _FUNCTION_WORDS.get(script, {}).items()}
    most = max(hits.values(), default=0)
    return frozenset(language for language, count in hits.items() if count == most)


def _script(character: str) -> str | None:
    code = ord(character)
    for script, ranges in _SCRIPTS.items():
        for first, last in ranges:
            if first <= code <= last:
                return script
    return None
