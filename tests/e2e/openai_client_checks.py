"""What the official client must be able to do with us. Owner: the client's own environment.

Run by test_openai_client.py as a program: `openai_client_checks.py URL` prints one JSON object,
name of a check -> "" or what went wrong. The server says what stands between `SAY<` and `>` in the
last message (or prompt). Every stream is held to the rules of all streams as its bytes come.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.stream_rules import Watch

CHECKS: list[Callable[..., Any]] = []


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    CHECKS.append(function)
    return function


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": f"SAY<{text}>"}]


@check
def models(client: Any) -> None:
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "sglang"


@check
def unknown_model(client: Any) -> None:
    import openai

    try:
        client.models.retrieve("org/none")
    except openai.NotFoundError as error:
        assert error.status_code == 404 and error.code == "model_not_found", error
    else:
        raise AssertionError("no error")


@check
def chat(client: Any) -> None:
    done = client.chat.completions.create(model="tiny", messages=user("Hello, wörld 🎉"), seed=1)
    assert done.object == "chat.completion" and done.choices[0].finish_reason == "stop"
    assert done.choices[0].message.content == "Hello, wörld 🎉"
    assert done.choices[0].message.role == "assistant"
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens


@check
def chat_stream(client: Any) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=user("Hello 🎉"), stream=True, stream_options={"include_usage": True}
    )
    text, roles = "", 0
    usage: Any = None
    for chunk in stream:
        if chunk.usage:
            usage = chunk.usage
        for choice in chunk.choices:
            roles += choice.delta.role == "assistant"
            text += choice.delta.content or ""
    assert (text, roles) == ("Hello 🎉", 1) and usage.completion_tokens > 0


@check
def chat_stream_helper(client: Any) -> None:
    kinds = []
    with client.chat.completions.stream(model="tiny", messages=user("one two")) as stream:
        for event in stream:
            kinds.append(event.type)
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "one two"
    assert "content.delta" in kinds and kinds.count("content.done") == 1


@check
def chat_n(client: Any) -> None:
    done = client.chat.completions.create(model="tiny", messages=user("x"), n=3, temperature=0)
    assert [c.index for c in done.choices] == [0, 1, 2]


@check
def raw_response(client: Any) -> None:
    raw = client.chat.completions.with_raw_response.create(model="tiny", messages=user("raw"))
    assert raw.status_code == 200 and raw.headers["content-type"] == "application/json"
    assert raw.parse().choices[0].message.content == "raw"


@check
def streaming_response(client: Any) -> None:
    with client.chat.completions.with_streaming_response.create(
        model="tiny", messages=user("raw"), stream=True
    ) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)


@check
def typed_parsing(client: Any) -> None:
    from pydantic import BaseModel

    class Place(BaseModel):
        city: str
        people: int

    done = client.chat.completions.parse(
        model="tiny", messages=user('{"city": "Rome", "people": 3}'), response_format=Place
    )
    assert done.choices[0].message.parsed == Place(city="Rome", people=3)


def weather_tool() -> Any:
    import openai
    from pydantic import BaseModel

    class GetWeather(BaseModel):
        city: str

    return openai.pydantic_function_tool(GetWeather, name="get_weather")


CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'


@check
def tool_loop(client: Any) -> None:
    messages = user(CALL)
    tools = [weather_tool()]
    done = client.chat.completions.create(model="tiny", messages=messages, tools=tools)
    choice = done.choices[0]
    assert choice.finish_reason == "tool_calls"
    (called,) = choice.message.tool_calls
    assert json.loads(called.function.arguments) == {"city": "Oslo"}
    messages.append(choice.message)
    messages.append({"role": "tool", "tool_call_id": called.id, "content": "rain"})
    messages += user("It rains.")
    done = client.chat.completions.create(model="tiny", messages=messages, tools=tools)
    assert done.choices[0].message.content == "It rains."


@check
def tool_stream_helper(client: Any) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=user(CALL), tools=[weather_tool()]
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    (called,) = final.choices[0].message.tool_calls
    assert called.function.parsed_arguments.city == "Oslo"
    assert final.choices[0].finish_reason == "tool_calls"


@check
def reasoning(client: Any) -> None:
    done = client.chat.completions.create(
        model="tiny", messages=user("[think]why[/think]so"), reasoning_effort="low"
    )
    message = done.choices[0].message
    assert (message.content, message.reasoning_content) == ("so", "why"), message


@check
def completions(client: Any) -> None:
    done = client.completions.create(model="tiny", prompt="SAY<abc>", max_tokens=50)
    assert done.choices[0].text == "abc" and done.choices[0].finish_reason == "stop"
    done = client.completions.create(model="tiny", prompt=["SAY<a>", "SAY<b>"], echo=True, n=2)
    assert [c.text for c in done.choices] == ["SAY<a>a"] * 2 + ["SAY<b>b"] * 2


@check
def completions_stream(client: Any) -> None:
    stream = client.completions.create(model="tiny", prompt="SAY<streamed>", stream=True)
    assert "".join(c.choices[0].text for c in stream) == "streamed"


@check
def bad_request(client: Any) -> None:
    import openai

    for stream in (False, True):
        try:
            client.chat.completions.create(
                model="tiny", messages=user("x"), temperature=-1, stream=stream
            )
        except openai.BadRequestError as error:
            assert "temperature" in error.message and error.type == "BadRequestError"
        else:
            raise AssertionError("no error")


@check
def too_long(client: Any) -> None:
    import openai

    try:
        client.chat.completions.create(model="tiny", messages=user("x" * 9000), stream=True)
    except openai.BadRequestError as error:
        assert "context length" in error.message
    else:
        raise AssertionError("no error")


@check
def closing_a_stream(client: Any) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=user("y" * 1500), stream=True, max_tokens=2000
    )
    next(iter(stream))
    stream.close()
    assert client.chat.completions.create(model="tiny", messages=user("z")).choices


@check
async def async_client(client: Any) -> None:
    async def one(k: int) -> str:
        done = await client.chat.completions.create(model="tiny", messages=user(f"no {k}"))
        return str(done.choices[0].message.content)

    async def streamed(k: int) -> str:
        stream = await client.chat.completions.create(
            model="tiny", messages=user(f"st {k}"), stream=True
        )
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    texts = await asyncio.gather(*[one(k) for k in range(10)], *[streamed(k) for k in range(10)])
    assert texts == [f"no {k}" for k in range(10)] + [f"st {k}" for k in range(10)]


@check
async def async_stream_helper(client: Any) -> None:
    async with client.chat.completions.stream(model="tiny", messages=user("a b")) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "a b"


class Watched:
    """The bytes of an event stream, on their way to the client."""

    whole = 0  # streams that were read to their end

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.watch = Watch()

    def end(self) -> None:
        self.watch.end()
        Watched.whole += 1

    def __iter__(self) -> Iterator[bytes]:
        for data in self.inner:
            self.watch.feed(data)
            yield data
        self.end()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self.inner:
            self.watch.feed(data)
            yield data
        self.end()

    def close(self) -> None:
        self.inner.close()

    async def aclose(self) -> None:
        await self.inner.aclose()


def look(response: Any) -> None:
    """A hook of the client's: event streams are read through `Watched`."""
    import httpx2 as httpx

    if response.headers.get("content-type", "").startswith("text/event-stream"):
        kind = httpx.SyncByteStream, httpx.AsyncByteStream
        response.stream = type("Stream", (Watched, *kind), {})(response.stream)


async def look_async(response: Any) -> None:
    look(response)


def main(url: str) -> dict[str, str]:
    """Run every check; name -> "" or the traceback."""
    import httpx2 as httpx
    import openai

    found = {}
    http = httpx.Client(timeout=60, event_hooks={"response": [look]})
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, http_client=http) as client:
        for function in CHECKS:
            try:
                if asyncio.iscoroutinefunction(function):
                    asyncio.run(_async(function, url))
                else:
                    function(client)
                found[function.__name__] = ""
            except Exception:
                found[function.__name__] = traceback.format_exc()
    assert Watched.whole >= 10, f"{Watched.whole} streams were watched"
    return found


async def _async(function: Callable[..., Any], url: str) -> None:
    import httpx2 as httpx
    import openai

    http = httpx.AsyncClient(timeout=60, event_hooks={"response": [look_async]})
    async with openai.AsyncOpenAI(
        base_url=url, api_key="none", max_retries=0, http_client=http
    ) as client:
        await function(client)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
