"""What a message says: a text, or parts, each a text or an image; a part of another type is refused by name.

Part of `shared.contracts.conversation`. Knows the shapes only; what an image's URL may be is decided by `generator.images`.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from shared.contracts.fields import HARMLESS
from shared.contracts.wire import WireModel


class TextPart(WireModel):
    """A piece of text."""

    type: Literal["text"]
    text: str


class ImageUrl(WireModel):
    """The image itself.

    Attributes:
        url: `data:image/png;base64,…`; also jpeg, webp and gif. Nothing is fetched.
        detail: the model's own preprocessing decides how large it sees an image.
    """

    url: Annotated[str, Field(min_length=1)]
    detail: Annotated[Literal["auto", "low", "high"] | None, HARMLESS] = None


class ImagePart(WireModel):
    """An image, in a user's message to a model that takes images."""

    type: Literal["image_url"]
    image_url: ImageUrl


_PART_TYPES = {"text": "TextPart", "image_url": "ImagePart"}
"""Tags of the union by the part's type; written like class names, which error locations leave out."""


def _type_of(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else getattr(part, "type", None)


def _check_type(part: Any) -> Any:
    kind = _type_of(part)
    if not isinstance(kind, str) or kind not in _PART_TYPES:
        said = f"{kind[:64]!r} is not supported; " if isinstance(kind, str) else ""
        raise ValueError(f"type: {said}a part is an object whose type is {' or '.join(map(repr, _PART_TYPES))}")
    return part


def _content_tag(content: Any) -> str | None:
    return "Text" if isinstance(content, str) else "Parts" if isinstance(content, list) else None


ContentPart = Annotated[
    Annotated[TextPart, Tag("TextPart")] | Annotated[ImagePart, Tag("ImagePart")],
    Discriminator(lambda part: _PART_TYPES[_type_of(part)]),
    BeforeValidator(_check_type),
]
Content = Annotated[
    Annotated[str, Tag("Text")] | Annotated[list[ContentPart], Tag("Parts")],
    Discriminator(
        _content_tag,
        custom_error_type="content_type",
        custom_error_message="Input should be a string or a list of parts",
    ),
]
"""Tagged, so that an error names the part that is wrong: `messages.0.content.1.image_url.url`."""
