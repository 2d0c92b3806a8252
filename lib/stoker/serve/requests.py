"""What a client may ask for, in the words of OpenAI's API; all else is refused by name, never ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

T = TypeVar("T", bound="Asked")
_MOST = 2**31 - 1


class Refused(Exception):
    """A request that is not answered with text; `param` is the field of the body that is wrong."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param

    def body(self) -> dict[str, Any]:
        """Returns the answer in OpenAI's form."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.status}}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(_Strict):
    include_usage: bool = False


class Message(_Strict):
    role: Literal["system", "user", "assistant"]
    content: str


def _as_list(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


Stop = Annotated[str, Field(min_length=1, max_length=1000)]
Stops = Annotated[list[Stop], Field(max_length=4), BeforeValidator(_as_list)]


class Asked(_Strict):
    """The fields of both kinds; `top_k` is not OpenAI's, 0 draws from all tokens."""

    model: str
    max_tokens: int | None = Field(None, ge=1, le=_MOST)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, le=_MOST)
    stop: Stops = []
    stream: bool = False
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _options_of_a_stream(self) -> Asked:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is given, and stream is not true")
        return self


class Completion(Asked):
    prompt: str


class Chat(Asked):
    messages: list[Message] = Field(min_length=1)


def parse(kind: type[T], data: bytes) -> T:
    """Returns the body; Refused with the name of each field that is wrong."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
    words, names = [], [".".join(map(str, fault["loc"])) for fault in faults]
    for name, fault in zip(names, faults, strict=True):
        known = f"this server does not know it; it knows {', '.join(kind.model_fields)}"
        message = known if fault["type"] == "extra_forbidden" else fault["msg"]
        words.append(f"{name}: {message}" if name else message)
    raise Refused(400, "; ".join(words[:5]), names[0].partition(".")[0] or None)
