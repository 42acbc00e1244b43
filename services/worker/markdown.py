"""Makes text of a model or a page inert: no HTML, no strange links, nothing invisible, bounded."""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Collection, Iterator
from itertools import islice

TITLE_CHARACTERS = 120
BODY_CHARACTERS = 4_000
QUOTE_CHARACTERS = 300
# Nothing sensible is longer; it also bounds the work below, which no other thread can interrupt.
_INPUT_CHARACTERS = 5_000
_LAYERS = 8
_OCCURRENCES = 50

_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff"
    "\u202a-\u202e\u2066-\u2069\ufeff"  # text direction overrides can show what is not there
    "\u200b\u2060-\u2064\U000e0000-\U000e007f\U000e0100-\U000e01ef]"  # and these hide what is
)
# Longer ones keep their words and lose their meaning all the same, see below.
_COMMENT = re.compile(r"<!--.{0,500}?-->|<\?.{0,500}?\?>|<!\[CDATA\[.{0,500}?\]\]>", re.DOTALL)
_WITH_CONTENT = re.compile(
    r"<(script|style|iframe|object|svg|math|template|noscript|textarea|title)\b[^>]{0,500}>"
    r".{0,1000}?</\1\s*>",
    re.DOTALL | re.IGNORECASE,
)
_TAG = re.compile(
    r"</?(?:a|abbr|article|aside|audio|b|base|blockquote|body|br|button|center|cite|code|dd|"
    r"details|div|dl|dt|em|embed|figure|font|footer|form|frame|frameset|h[1-6]|head|header|hr|"
    r"html|i|iframe|img|input|ins|kbd|label|li|link|main|map|marquee|math|meta|nav|noscript|"
    r"object|ol|option|p|param|picture|pre|q|s|samp|script|section|select|small|source|span|"
    r"strong|style|sub|summary|sup|svg|table|tbody|td|template|textarea|tfoot|th|thead|title|"
    r"tr|track|u|ul|var|video|wbr)(?=[\s/>])[^<>]*>",
    re.IGNORECASE,
)
_IMAGE_OR_LINK = re.compile(r"!?\[([^\[\]]*)\]\((?:[^()\n]|\([^()\n]*\))*\)")
_REFERENCE = re.compile(r"!?\[([^\[\]]+)\]\[[^\[\]]*\]")
_DEFINITION = re.compile(r"^[ >]*\[[^\[\]]+\]:.*$", re.MULTILINE)
_AUTOLINK = re.compile(r"<((?:[a-z][a-z0-9+.-]{1,31}:|[\w.+-]+@)[^\s<>]*)>", re.IGNORECASE)
_SCHEME = re.compile(
    r"(?:(?:https?|ftp|file|wss?)://(?:www\.)?|(?:javascript|vbscript):|\b(?:mailto|tel):"
    r"|\bdata:(?=[\w.+-]*[/;,])|\bwww\.(?=\w))",
    re.IGNORECASE,
)
_REMOVALS = (
    (_COMMENT, ""),
    (_WITH_CONTENT, ""),
    (_TAG, ""),
    (_DEFINITION, ""),
    (_IMAGE_OR_LINK, r"\1"),
    (_REFERENCE, r"\1"),
    (_AUTOLINK, r"\1"),
    (_SCHEME, ""),
)
# A link that may stay, if its host may: no user, no port, nothing that needs a second look.
_PLAIN_LINK = re.compile(
    r"(?<!!)\[([^\[\]\n<>]{1,200})\]"
    r"\((https://([a-z0-9.-]{1,100})(?:/[\w.~%/-]{0,300})?(?:#[\w.~%-]{0,100})?)\)"
)
# Stands for a link that was set aside; clean texts hold no such characters.
_ASIDE = re.compile("\ue000(\\d+)\ue001")
# What is left of something like a tag or a link loses its meaning by one space.
_OPENING = re.compile(r"<(?=[A-Za-z/!?])")
_LINK_JOINT = re.compile(r"\](?=[(\[:])")


def clean_markdown(
    text: str, limit: int = BODY_CHARACTERS, *, link_hosts: Collection[str] = ()
) -> str:
    """Keeps the words and plain Markdown of an untrusted text, nothing that acts.

    Links lose their address unless they lead to one of the hosts.
    """
    text = re.sub("[\ue000\ue001]", "", clean_text(text[:_INPUT_CHARACTERS]))
    links: list[tuple[str, str]] = []

    def set_aside(link: re.Match[str]) -> str:
        label, address, host = link.groups()
        if host not in link_hosts:
            return link.group()
        links.append((_inert(label), address))
        return f"\ue000{len(links) - 1}\ue001"

    text = _inert(_PLAIN_LINK.sub(set_aside, text))
    text = shorten(re.sub(r"\n{3,}", "\n\n", text).strip(), limit)
    linked = _ASIDE.sub(lambda place: "[{}]({})".format(*links[int(place[1])]), text)
    if len(linked) <= limit:
        return linked
    return shorten(_ASIDE.sub(lambda place: links[int(place[1])][0], text), limit)


def _inert(text: str) -> str:
    for _ in range(_LAYERS):  # removing one layer may uncover the next
        previous, text = text, _without_layer(text)
        if text == previous:
            break
    else:  # nobody writes like this in good faith
        text = text.replace(":", " ")
    return _LINK_JOINT.sub("] ", _OPENING.sub("< ", text))


def _without_layer(text: str) -> str:
    for pattern, kept in _REMOVALS:
        text = pattern.sub(kept, text)
    return text


def clean_title(text: str) -> str:
    """One line, without Markdown's marks at its ends."""
    line = " ".join(clean_markdown(text, limit=BODY_CHARACTERS).split())
    return shorten(line.strip("#*_` "), TITLE_CHARACTERS)


def clean_text(text: str) -> str:
    """Without characters that a database, a terminal or an eye would stumble over."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters, cut between words where there are any."""
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    space = head.rfind(" ", limit // 2)
    return (head[:space] if space > 0 else head).rstrip() + "…"


def locate_quote(quote: str, page_text: str) -> str:
    """The quote as it stands on the page, white space and hyphens aside; empty if absent."""
    needle = "".join(folded for folded, _ in _folded(quote[: 4 * QUOTE_CHARACTERS]))
    if len(needle) < 2:
        return ""
    pieces = list(_folded(page_text))
    starts, length = [], 0
    for folded, _ in pieces:
        starts.append(length)
        length += len(folded)
    haystack = "".join(folded for folded, _ in pieces)
    spans = (
        (pieces[bisect_right(starts, at) - 1][1], pieces[bisect_right(starts, end) - 1][1] + 1)
        for at, end in _occurrences(needle, haystack)
    )
    first, last = _best_span(list(islice(spans, _OCCURRENCES)), page_text)
    return _within(clean_text(page_text[first:last]))


def _occurrences(needle: str, haystack: str) -> Iterator[tuple[int, int]]:
    at = haystack.find(needle)
    while at >= 0:
        yield at, at + len(needle) - 1
        at = haystack.find(needle, at + 1)


def _best_span(spans: list[tuple[int, int]], text: str) -> tuple[int, int]:
    """The first that is made of whole words, else the first; nothing when there is none."""
    for first, last in spans:
        before, after = text[first - 1 : first], text[last : last + 1]
        if not (_is_latin(before) or _is_latin(after)):
            return first, last
    return spans[0] if spans else (0, 0)


def _is_latin(character: str) -> bool:
    return character.isalnum() and character < "\u2e80"


def _folded(text: str) -> list[tuple[str, int]]:
    """Each visible character in the form in which characters are compared, and where it stands."""
    pieces = []
    for position, character in enumerate(text):
        if character.isspace() or character in "-\u00ad\u2010\u2011":
            continue
        folded = unicodedata.normalize("NFKC", character).casefold().replace(" ", "")
        if folded:
            pieces.append((folded, position))
    return pieces


def _within(quote: str) -> str:
    """A long quote loses its end, not its exactness: no ellipsis."""
    if len(quote) <= QUOTE_CHARACTERS:
        return quote
    head = quote[:QUOTE_CHARACTERS]
    return head[: max(head.rfind(" "), head.rfind("\n"), QUOTE_CHARACTERS // 2)].rstrip()
