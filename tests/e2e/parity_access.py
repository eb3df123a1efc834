"""Rows of the compatibility table: HTTP, keys, CORS, header overrides, compressed bodies. Owner:
constants."""

from __future__ import annotations

from tests.e2e.parity_rows import Choice

_ACCESS = "tests/e2e/test_access.py::"
_HTTP = "tests/e2e/test_http.py::"

ACCESS_CHOICES: tuple[Choice, ...] = (
    Choice(
        "keys", "`--api-key`", "accepted, not enforced", "one key; a flag only",
        "any number: flags, files, `TPC_API_KEY` or `SGLANG_API_KEY`",
        "as Python where it has one; a file or the environment are not shown by `ps`",
        proof="tests/unit/test_access.py::test_where_keys_come_from",
    ),
    Choice(
        "key-classes", "which key opens what", "-",
        "the API key all but administration, the admin key only that", "the same", "as Python",
        proof=_ACCESS + "test_what_a_key_opens",
    ),
    Choice(
        "bare-key", "`x-api-key` instead of `Authorization`", "-", "ignored",
        "opens `/v1/messages` and its `/count_tokens`, no other route",
        "Anthropic's clients send it",
        proof=_ACCESS + "test_anthropics_clients_send_their_key_without_a_scheme",
    ),
    Choice(
        "open-paths", "routes without a key", "-",
        "whatever starts with `/health`, `/ready` or `/metrics`, and OPTIONS",
        "the routes `/health`, `/health_generate`, `/ready`, `/live`, `/metrics`, and OPTIONS",
        "a path that is no route needs a key like any other, so that none is left open by its name",
        proof=_ACCESS + "test_however_a_path_is_written",
    ),
    Choice(
        "key-and-body", "a bad key with a body still to come", "-", "401",

        "401 at once, the connection closes", "a stranger's body is not stored",
        proof=_ACCESS + "test_a_bad_key_is_told_before_the_body_is_read",
    ),
    Choice(
        "cors", "CORS", "none", "every origin, with credentials",
        "every origin, without credentials; `--cors-allow-origin` names some, or `none`",
        "keys travel in a header that pages set themselves; a cookie of a proxy must not open the"
        " server to every page",
        proof=_ACCESS + "test_pages_of_any_origin_may_call",
    ),
    Choice(
        "cors-of-401", "CORS headers of a 401", "-", "none", "as on every answer",
        "a page learns why", proof=_ACCESS + "test_pages_of_some_origins_may_call",
    ),
    Choice(
        "request-id", "`X-Request-Id`", "ignored", "ignored",
        "comes back on every answer; with `--enable-request-id-headers` one is made where none"
        " came",
        "as vLLM and Dynamo", proof=_ACCESS + "test_a_request_id_comes_back_on_every_answer",
    ),
    Choice(
        "routed", "`X-Data-Parallel-Rank`, `X-SMG-Routing-Key`", "the key only",
        "on the OpenAI routes; a bad rank is 400", "the same", "as Python",
        proof=_ACCESS + "test_routers_name_rank_and_key",
    ),
    Choice(
        "overrides", "`x-override-*`, when enabled", "a bad value is 400",
        "a bad value is 400; not on `/v1/completions`",
        "a bad value is 400; on `/v1/completions` too; `x-override-conversation-id` is 400 on"
        " every route that generates",
        "as Python; what cannot be honoured is refused",
        proof=_ACCESS + "test_headers_take_the_place_of_fields",
    ),
    Choice(
        "compressed", "compressed bodies", "`x-body-compressed: zstd` in its newer source",
        "the same, with `SGLANG_ENABLE_REQUEST_DECOMPRESSION`, without a limit",
        "zstd, gzip, deflate by `x-body-compressed` or `Content-Encoding`; 413 beyond the body"
        " limit, 415 for another coding",
        "the limit holds for what comes out", proof=_ACCESS + "test_compressed_bodies",
    ),
    Choice(
        "trailing-slash", "a known path with a slash behind it", "404", "307 to the path",
        "as the path without it, keys included", "a redirected POST is lost on some clients",
        proof=_ACCESS + "test_however_a_path_is_written",
    ),
    Choice(
        "http-errors", "body of a 404, 405, 408, 413, 417 or 431", "empty, or text",
        "flat on every route",
        "OpenAI's flat object under `/v1/`, on `/invocations` and on the routes of the tokenizer"
        " and the parsers, else the native one",
        "one route, one shape", proof=_HTTP
        + "test_errors_of_the_http_layer_have_the_shape_of_the_route",
    ),
    Choice(
        "upgrade", "`Upgrade: h2c` or `websocket`", "-", "ignored", "ignored",
        "what curl's `--http2` asks for is optional", proof=_HTTP + "test_upgrades_are_ignored",
    ),
    Choice(
        "http-strict", "no Host or two; `Transfer-Encoding: gzip, chunked`; HTTP/2.0 in a request"
        " line", "-", "-", "400, 501, 505, and the connection closes", "RFC 9112",
        proof=_HTTP + "test_refused_and_closed",
    ),
)  # fmt: skip
