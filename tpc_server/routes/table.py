"""The routes, declared once: path, methods, handler, who may call. Owner: stateless.

From here come the dispatch tables of every core, the access checks and the API description.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = [
    "ADMIN", "ADMIN_OPTIONAL", "KEY", "NOT_SERVED", "OPEN", "REGISTRY", "ROUTES", "Query", "Route",
]  # fmt: skip

# Who may call a route (SGLang's levels; its health family is open by path).
OPEN: Final = 0  # anybody, also where keys are set
KEY: Final = 1  # the API key, where one is set
ADMIN_OPTIONAL: Final = 2  # the admin key where one is set, else as KEY
ADMIN: Final = 3  # the admin key; nobody where none is set


# Handlers of the routes that only a prefill server has.
REGISTRY: Final = ("registry_route", "register_dp_rank", "query_dp_ranks")


class Query(NamedTuple):
    """One parameter of the query string, for the API description."""

    name: str
    type: str  # of JSON schema
    about: str


class Route(NamedTuple):
    """One path. `{name}` at its end stands for the rest of the path, slashes included.

    A GET route answers HEAD too. `handler` names a method of the router; `body` the request type.
    """

    path: str
    methods: tuple[str, ...]
    handler: str
    access: int
    summary: str
    body: str = ""
    query: tuple[Query, ...] = ()


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "/generate", ("POST", "PUT"), "generate", KEY,
        "Generate from a prompt, a batch of prompts, or their token ids", "GenerateRequest",
    ),
    Route(
        "/vertex_generate", ("POST",), "vertex", KEY,
        "As /generate, by Vertex AI's name and in its envelope", "VertexRequest",
    ),
    Route(
        "/abort_request", ("POST",), "abort", ADMIN_OPTIONAL,
        "End running requests by their ids, or all of them", "AbortRequest",
    ),
    Route(
        "/flush_cache", ("GET", "POST"), "flush_cache", ADMIN_OPTIONAL,
        "Empty the scheduler's prefix cache; refused while requests run",
        query=(Query("timeout", "number", "seconds to wait for running requests to end"),),
    ),
    Route(
        "/weights_checker", ("GET", "POST"), "weights_checker", ADMIN_OPTIONAL,
        "Checksums of the scheduler's weights, or another check of them", "CheckWeightsRequest",
    ),
    Route(
        "/hicache/storage-backend", ("GET", "PUT", "DELETE"), "hicache", ADMIN_OPTIONAL,
        "The storage behind the scheduler's cache: say, attach, detach; needs an admin key",
        "AttachRequest",
    ),
    Route(
        "/hicache/storage-backend/clear", ("POST",), "clear_hicache", ADMIN_OPTIONAL,
        "Empty the storage behind the scheduler's cache",
    ),
    Route(
        "/pause_generation", ("POST",), "pause", ADMIN_OPTIONAL,
        "The scheduler makes no steps until it is told to go on", "PauseRequest",
    ),
    Route(
        "/continue_generation", ("POST",), "continue_", ADMIN_OPTIONAL,
        "After /pause_generation", "ContinueRequest",
    ),
    Route(
        "/open_session", ("GET", "POST"), "open_session", KEY,
        "Begin a conversation that the scheduler keeps; the answer is its id",
        "OpenSessionRequest",
    ),
    Route(
        "/close_session", ("GET", "POST"), "close_session", KEY,
        "End a conversation", "CloseSessionRequest",
    ),
    Route(
        "/route", ("GET", "PUT"), "registry_route", OPEN,
        "Prefill servers only: where the ranks are, for decode nodes; they register by PUT",
        "RegisterRequest",
        query=tuple([Query(name, "integer", "-1: the server as a whole") for name in (
            "prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank",
        )]),
    ),
    Route(
        "/register_dp_rank", ("POST",), "register_dp_rank", OPEN,
        "Prefill servers only: which rank serves a request", "RoomRequest",
    ),
    Route(
        "/query_dp_ranks", ("POST",), "query_dp_ranks", OPEN,
        "Prefill servers only: which ranks serve some requests", "RoomsRequest",
    ),
    Route(
        "/tokenize", ("POST",), "tokenize", KEY, "The token ids of texts", "TokenizeRequest"
    ),
    Route("/v1/tokenize", ("POST",), "tokenize", KEY, "As /tokenize", "TokenizeRequest"),
    Route(
        "/detokenize", ("POST",), "detokenize", KEY, "The texts of token ids", "DetokenizeRequest"
    ),
    Route("/v1/detokenize", ("POST",), "detokenize", KEY, "As /detokenize", "DetokenizeRequest"),
    Route(
        "/parse_function_call", ("POST",), "parse_function_call", KEY,
        "The function calls in a text that a model wrote", "ParseRequest",
    ),
    Route(
        "/separate_reasoning", ("POST",), "separate_reasoning", KEY,
        "The reasoning and the answer in a text that a model wrote", "SeparateRequest",
    ),
    Route("/health", ("GET",), "health", OPEN, "200 once the scheduler answers"),
    Route("/health_generate", ("GET",), "health_generate", OPEN, "As /health, always by a probe"),
    Route("/ready", ("GET",), "ready", OPEN, "200 while new requests are served"),
    Route("/ping", ("GET",), "ping", KEY, "As /ready, but 200 while generation is paused"),
    Route("/live", ("GET",), "live", OPEN, "200 while the process answers"),
    Route("/", ("GET",), "root", KEY, "That the server runs"),
    Route("/openapi.json", ("GET",), "openapi", KEY, "This API's description"),
    Route("/docs", ("GET",), "docs", KEY, "A page to read it and try requests"),
    Route("/version", ("GET",), "version", KEY, "Versions of engine and frontend"),
    Route("/model_info", ("GET",), "model_info", KEY, "What the model is"),
    Route("/get_model_info", ("GET",), "model_info", KEY, "Older name of /model_info"),
    Route("/server_info", ("GET",), "server_info", KEY, "Arguments, counters, scheduler state"),
    Route("/get_server_info", ("GET",), "server_info", KEY, "Older name of /server_info"),
    Route(
        "/v1/chat/completions", ("POST",), "chat", KEY,
        "Answer a conversation", "ChatCompletionRequest",
    ),
    Route(
        "/v1/completions", ("POST",), "completions", KEY,
        "Complete a text", "CompletionRequest",
    ),
    Route(
        "/v1/messages", ("POST",), "messages", KEY,
        "Answer a conversation, by Anthropic's API", "MessagesRequest",
    ),
    Route(
        "/v1/messages/count_tokens", ("POST",), "count_tokens", KEY,
        "How many tokens a conversation has", "CountTokensRequest",
    ),
    Route("/metrics", ("GET",), "metrics", OPEN, "Counters and times as Prometheus text"),
    Route("/metrics/", ("GET",), "metrics", OPEN, "As /metrics"),
    Route(
        "/v1/loads", ("GET",), "loads", KEY, "How busy the scheduler is",
        query=(
            Query("include", "string", "core, memory, spec, lora, disagg, queues or all"),
            Query("dp_rank", "integer", "only this rank"),
            Query("format", "string", "json or prometheus"),
        ),
    ),
    Route(
        "/invocations", ("POST",), "chat", KEY,
        "As /v1/chat/completions, by SageMaker's name", "ChatCompletionRequest",
    ),
    Route("/v1/models", ("GET",), "models", KEY, "The models served"),
    Route("/v1/models/{model}", ("GET",), "model", KEY, "One model served"),
)  # fmt: skip

#: Routes of SGLang that are not served here: a 404 says so (docs/COMPATIBILITY.md says why).
NOT_SERVED: Final = (
    "/add_external_corpus", "/api/chat", "/api/generate", "/api/show", "/api/tags",
    "/begin_weight_update", "/classify", "/configure_logging",
    "/destroy_weights_update_group", "/dump_expert_distribution_record",
    "/encode", "/end_weight_update", "/freeze_gc", "/get_hicache_l3_cache_layout",
    "/get_remote_instance_transfer_engine_info", "/get_weights_by_name",
    "/init_weights_send_group_for_remote_instance", "/init_weights_update_group",
    "/list_external_corpora", "/load_lora_adapter", "/load_lora_adapter_from_tensors",
    "/pd_role_switch", "/release_memory_occupation",
    "/remote_instance_transfer_engine_info", "/remove_external_corpus",
    "/resume_memory_occupation", "/send_weights_to_remote_instance", "/set_internal_state",
    "/set_trace_level", "/slow_down", "/start_expert_distribution_record", "/start_profile",
    "/stop_expert_distribution_record", "/stop_profile", "/unload_lora_adapter",
    "/update_weight_version", "/update_weights_from_disk", "/update_weights_from_distributed",
    "/update_weights_from_ipc", "/update_weights_from_tensor", "/v1/audio/transcriptions",
    "/v1/classify", "/v1/decisions", "/v1/embeddings", "/v1/realtime", "/v1/rerank",
    "/v1/responses", "/v1/score", "/v1/systemone",
)  # fmt: skip
