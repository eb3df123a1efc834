"""One case of the fuzz: some requests that belong together, and what must hold of their answers.

Owner: the thread that plays it. Case number k of a seed is the same in every run.
"""

from __future__ import annotations

import json
import threading
from random import Random
from typing import Any, Final

from tests.fuzz import bodies
from tests.fuzz.bodies import APIS, CHAT, COMPLETIONS, GENERATE, GENERATING, MESSAGES, Ask
from tests.fuzz.replies import counts, expect, names_its_field, refusal, streamed, unary
from tests.http_client import Answer, Client, call
from tpc_server.routes.table import ROUTES

_GETS: Final = tuple([r for r in ROUTES if "GET" in r.methods and r.path != "/flush_cache"])
_SMALL: Final = tuple([path for path in bodies.TYPE_OF if path not in GENERATING])


class Player:
    """One client: a connection that is kept, and what it has done."""

    def __init__(self, address: Any, incremental: bool) -> None:
        self.address = address
        self.incremental = incremental
        self.asked = 0
        self.last: Any = None  # on the same connection, perhaps
        self._conn: Client | None = None

    def close(self) -> None:
        """Hang up."""
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def conn(self) -> Client:
        """The connection, opened when there is none."""
        if self._conn is None:
            self._conn = Client(self.address, timeout=60, halves=True)
        return self._conn

    def ask(self, ask: Ask, method: str = "POST") -> Answer:
        """One request; every answer is held to what holds for all."""
        self.asked += 1
        client = self.conn()
        client.request(method, ask.path, ask.body)
        try:
            answer = client.answer(method)
        except (EOFError, ValueError, AssertionError) as error:
            about = f"{error!r}: {ask!r} after {self.last!r}, {client.buffer[-500:]!r}"
            raise AssertionError(f"cut off, or no HTTP: {about}"[:3000]) from None
        self.last = (method, ask)
        if answer.headers.get("connection") == "close":
            self.close()
        expect(answer.status < 500 or answer.status == 503, "a failure", ask, answer.body)
        return answer

    def events(self, ask: Ask, answer: Answer) -> list[Any]:
        """The events of a stream, which obeys the rules of every stream."""
        try:
            return answer.events(ask.path == GENERATE and not self.incremental)
        except AssertionError as error:
            raise AssertionError(f"{error}: {ask!r} {answer.body[-1500:]!r}") from None

    # -- cases -------------------------------------------------------------------------

    def play(self, rng: Random, name: str) -> None:
        """One case. `name` is nobody else's and may start the ids of requests."""
        kind = rng.random()
        if kind < 0.24:
            self.same_request(rng)
        elif kind < 0.62:
            make = rng.choice((bodies.one_changed, bodies.one_changed, bodies.several_changed))
            self.both_ways(make(rng, rng.choice(GENERATING)), rng)
        elif kind < 0.67:
            self.both_ways(bodies.anything(rng, rng.choice(GENERATING)), rng)
        elif kind < 0.73:
            self.both_ways(bodies.conversation(rng), rng)
        elif kind < 0.75:
            self.pipelined(rng)
        elif kind < 0.82:
            self.small(rng)
        elif kind < 0.86:
            self.texts(rng)
        elif kind < 0.9:
            self.scripted(rng, name)
        elif kind < 0.94:
            self.aborted(rng, name)
        else:
            self.leave(rng, name)

    def same_request(self, rng: Random) -> None:
        """One engine request by all three routes, whole and streamed: one answer."""
        given = bodies.params(rng)
        ids = bodies.ids(rng)
        as_text = rng.random() < 0.5
        shown = []
        lists = rng.random() < 0.15
        for path in APIS if not lists else APIS[:2]:
            body: dict[str, Any]
            if path == GENERATE:
                body = {"sampling_params": given}
                body["text" if as_text else "input_ids"] = bytes(ids).decode() if as_text else ids
                if lists:
                    body = {
                        **body,
                        **{k: [body[k]] * 2 for k in ("text", "input_ids") if k in body},
                    }
            else:
                body = bodies.openai(given)
                body["stream_options"] = {"include_usage": True}
                if path == CHAT:
                    body |= {"messages": [{"role": "user", "content": "x"}], "input_ids": ids}
                    body["separate_reasoning"] = False
                else:
                    body["prompt"] = bytes(ids).decode() if as_text else ids
                    if lists:
                        body["prompt"] = [body["prompt"]] * 2
            if rng.random() < 0.3:
                body |= self.extras(rng, path)
            answer = self.both_ways(Ask(path, body), rng)
            expect(answer is not None, "a good request", path, body)
            assert answer is not None
            shown.append((path, body, [(one.text, _why(one)) for one in answer]))
        first = shown[0]
        for other in shown[1:]:
            expect(other[2] == first[2], "another answer to the same request", first, other)

    def extras(self, rng: Random, path: str) -> dict[str, Any]:
        """What may be asked for beside the text."""
        top = rng.choice((0, 1, 3))
        if path == GENERATE:
            return {
                "return_logprob": True, "top_logprobs_num": top,
                "logprob_start_len": rng.choice((-1, 0)),
                "return_text_in_logprobs": rng.random() < 0.5,
                "token_ids_logprob": rng.choice((None, [1, 2])),
                "return_hidden_states": rng.random() < 0.3,
                "return_prompt_token_ids": rng.random() < 0.3,
            }  # fmt: skip
        hidden = rng.choice((False, False, True, "last"))
        if path == COMPLETIONS:
            return {"logprobs": top, "return_hidden_states": hidden,
                    "return_token_ids": rng.random() < 0.3}  # fmt: skip
        return {"logprobs": True, "top_logprobs": top, "return_hidden_states": hidden}

    def both_ways(self, ask: Ask, rng: Random) -> Any:
        """A generating request whole and streamed; the items of its answer, None if refused."""
        body = ask.body
        if not isinstance(body, dict):
            answer = self.ask(ask)
            if answer.status != 200:
                refusal(ask, answer)
            return None
        ways = [False, True]
        rng.shuffle(ways)
        got: dict[bool, Any] = {}
        for stream in ways:
            got[stream] = self.ask(Ask(ask.path, {**body, "stream": stream}))
        whole, stream_ = got[False], got[True]
        if whole.status != 200:
            message = refusal(ask, whole)
            if ask.changed and whole.status == 400:
                names_its_field(ask, message)
            if whole.status == 503 or stream_.status == 503:
                return None
            if stream_.status == 200:
                # Of several items one was refused after another had begun.
                events = self.events(ask, stream_)
                told = [e for e in events[:-1] if "error" in e or _refused(e)]
                expect(bool(told), "refused whole and not streamed", ask, message, events[:3])
            else:
                expect(stream_.status == whole.status, "status", ask, whole.body, stream_.body)
                told = refusal(ask, stream_)
                same = told == message or "stream to false" in told
                expect(same, "two texts of one refusal", ask, message, told)
            return None
        expect(ask.fits or not ask.changed, "taken against its schema", ask, whole.body)
        items, usage = unary(ask.path, whole.json())
        if stream_.status == 503:
            return None
        if stream_.status != 200:
            message = refusal(ask, stream_)
            expect("stream to false" in message, "refused streamed and not whole", ask, message)
            return items
        expect(
            stream_.headers["content-type"].startswith("text/event-stream"), "no stream",
            ask, stream_.headers,
        )  # fmt: skip
        events = self.events(ask, stream_)
        expect(not any("error" in e for e in events[:-1]), "an error in a stream", ask, events[-2:])
        shown, told_usage = streamed(ask.path, events, self.incremental)
        expect(shown == items, "whole and streamed differ", ask, items, shown)
        if told_usage is not None and usage is not None and not _running(ask):
            expect(counts(told_usage) == counts(usage), "usage", ask, usage, told_usage)
        return items

    def pipelined(self, rng: Random) -> None:
        """Several requests at once on one connection: as many answers, each one's own."""
        asks = []
        for _ in range(rng.randint(2, 5)):
            path = rng.choice((*GENERATING, "/tokenize"))
            made = rng.choice((bodies.one_changed, bodies.anything))(rng, path)
            body = made.body
            if isinstance(body, dict) and path in GENERATING:
                body = {**body, "stream": rng.random() < 0.5}
            asks.append(Ask(path, body))
        client = self.conn()
        for ask in asks:
            client.request("POST", ask.path, ask.body)
        self.asked += len(asks)
        for ask in asks:
            answer = client.answer()
            if answer.status != 200:
                refusal(ask, answer)
            elif answer.headers["content-type"].startswith("text/event-stream"):
                self.events(ask, answer)
            else:
                answer.json()
            if answer.headers.get("connection") == "close":
                self.close()
                return

    def small(self, rng: Random) -> None:
        """The routes that generate nothing."""
        kind = rng.random()
        if kind < 0.5:
            path = rng.choice(_SMALL)
            make = rng.choice((bodies.one_changed, bodies.several_changed, bodies.anything))
            ask = make(rng, path)
            if path == "/abort_request" and not isinstance(ask.body, dict) and b"all" in ask.body:
                return
            answer = self.ask(ask)
            if answer.status != 200:
                message = refusal(ask, answer)
                if ask.changed:
                    names_its_field(ask, message)
            else:
                expect(ask.fits or not ask.changed, "taken against its schema", ask, answer.body)
            return
        route = rng.choice(_GETS)
        path = route.path.replace("{model}", rng.choice(("tiny", "x/y", "%74iny", "%ff")))
        if rng.random() < 0.2:
            path = path.replace("e", "%65")
        asked = path + bodies.query(rng)
        method = rng.choice(("GET", "GET", "GET", "HEAD", "POST", "DELETE", "OPTIONS"))
        if kind > 0.95:
            asked = rng.choice(("/nothing", "//generate", "/generate/", "/v1", "/%2e%2e/etc", "*"))
        ask = Ask(asked, None if method in ("GET", "HEAD") else {})
        answer = self.ask(ask, method)
        if method == "HEAD":
            expect(answer.status < 500 or "health" in path, "HEAD", ask, answer.status)
        elif answer.status != 200:
            refusal(ask, answer)
        elif "json" in answer.headers["content-type"]:
            answer.json()

    def texts(self, rng: Random) -> None:
        """A text through the tokenizer and back."""
        text = bodies.prompt(rng)
        many = rng.random() < 0.3
        sent: Any = [text, text * 2] if many else text
        prefix = rng.choice(("", "/v1"))
        made = self.ask(Ask(f"{prefix}/tokenize", {"prompt": sent})).json()
        want: Any = [list(t.encode()) for t in sent] if many else list(text.encode())
        expect(made["tokens"] == want, "ids of a text", sent, made)
        count: Any = [len(w) for w in want] if many else len(want)
        expect(made["count"] == count, "count of ids", sent, made)
        back = self.ask(Ask(f"{prefix}/detokenize", {"tokens": want})).json()
        expect(back == {"text": sent}, "text of ids", sent, back)

    def scripted(self, rng: Random, name: str) -> None:
        """Reasoning and calls, whole and streamed."""
        kind = rng.choice(("call", "think", "both"))
        body: dict[str, Any] = {"messages": bodies.messages(rng)}
        if rng.random() < 0.5:
            body["rid"] = f"{kind}-{name}"
        else:
            body |= {"n": 2, "max_tokens": 30}  # fresh ids: the engine makes its own text
        if kind != "think":
            body = bodies.with_tools(rng, body)
        if rng.random() < 0.3:
            body |= {"logprobs": True, "top_logprobs": 1}
        if rng.random() < 0.3:
            body |= {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        if rng.random() < 0.3:
            body["stream_reasoning"] = rng.random() < 0.5
        if rng.random() < 0.2:
            body["stop"] = rng.choice(("{", "Oslo", "</think>", "weather"))
        expect(self.both_ways(Ask(CHAT, body), rng) is not None, "a good request", body)

    def long_one(self, rng: Random, name: str) -> Ask:
        """A request that does not end by itself before the context is full."""
        path = rng.choice(APIS)
        given: dict[str, Any] = {"max_new_tokens": rng.choice((60, 250, 400)), "ignore_eos": True}
        kind = rng.randrange(4)
        if kind == 1:
            given["n"] = rng.choice((2, 4))
        rid: dict[str, Any] = {"rid": f"slow-{name}"}
        stream = {"stream": rng.random() < 0.6}
        if path == CHAT:
            message = [{"role": "user", "content": bodies.prompt(rng)}]
            return Ask(path, {"messages": message, **bodies.openai(given), **rid, **stream})
        text: Any = bodies.prompt(rng)
        if kind == 2:
            text = [text, text + "!", "x"]
        if path == GENERATE:
            return Ask(path, {"text": text, "sampling_params": given, **rid, **stream})
        return Ask(path, {"prompt": text, **bodies.openai(given), **rid, **stream})

    def aborted(self, rng: Random, name: str) -> None:
        """A request that is ended by its id, from another connection, at any time."""
        ask = self.long_one(rng, name)
        client = self.conn()
        self.asked += 2
        client.request("POST", ask.path, ask.body)
        for _ in range(rng.randint(0, 3)):  # some time
            call(self.address, "GET", "/live")
        ended = call(self.address, "POST", "/abort_request", {"rid": ask.body["rid"]})
        expect(ended.status == 200, "an abort", ask, ended.body)
        answer = client.answer()
        expect(answer.status == 200, "an aborted request", ask, answer.body)
        if ask.body["stream"]:
            events = self.events(ask, answer)
            shown, _ = streamed(ask.path, events, self.incremental)
        else:
            shown, _ = unary(ask.path, answer.json())
        for one in shown:
            expect(_why(one)[0] in ("abort", "length"), "an abort's end", ask, one)

    def leave(self, rng: Random, name: str) -> None:
        """Hang up at any point of a request."""
        ask = self.long_one(rng, name)
        self.asked += 1
        self.close()
        client = self.conn()
        raw = json.dumps(ask.body).encode()
        head = f"POST {ask.path} HTTP/1.1\r\nHost: t\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
        data = head + raw
        phase = rng.randrange(5)
        if phase == 0:
            data = data[: rng.randint(1, len(data) - 1)]
        client.send(data)
        if phase == 1 and rng.random() < 0.5:
            client.send(data)  # another one waits behind it
        if phase >= 3 and ask.body["stream"]:
            client.head()
            for _ in range(rng.randint(0, 5) if phase == 4 else 0):
                if not client.chunk():
                    break
        elif phase == 2:
            threading.Event().wait(rng.random() * 0.02)
        if rng.random() < 0.6:
            client.reset()
        self.close()


def _why(one: Any) -> tuple[str, Any]:
    """Why an item ended, whatever the route: (kind, what matched)."""
    if isinstance(one.finish, dict):
        matched = one.finish.get("matched")
        return one.finish["type"], matched
    return one.finish[0], one.finish[1]


def _refused(event: dict[str, Any]) -> bool:
    finish = event.get("meta_info", {}).get("finish_reason")
    return bool(finish) and finish["type"] == "abort"


def _running(ask: Ask) -> bool:
    """Whether usage is told in every chunk: the last one may be of one choice alone."""
    if ask.path == MESSAGES:
        return False
    options = ask.body.get("stream_options")
    return not (isinstance(options, dict) and options.get("include_usage") is True)
