"""Every route of SGLang 0.5.23's frontends: what each frontend answers, and ours. Owner: tests."""

from __future__ import annotations

# Path -> (methods of the Rust frontend, of the Python one, what is to say of ours).
SERVED: dict[str, tuple[str, str, str]] = {
    "/generate": ("POST", "POST, PUT", ""),
    "/v1/completions": ("POST", "POST", ""),
    "/v1/chat/completions": ("POST", "POST", ""),
    "/v1/messages": (
        "-", "POST", "a stop sequence is named (Python: end_turn); errors name the field",
    ),
    "/v1/messages/count_tokens": ("-", "POST", ""),
    "/invocations": ("-", "POST", "as /v1/chat/completions"),
    "/vertex_generate": (
        "-", "POST", "instances and parameters with unknown fields are 400; `AIP_PREDICT_ROUTE` too"
    ),
    "/abort_request": ("POST", "POST", "a list of rids too"),
    "/flush_cache": (
        "GET, POST", "GET, POST", "503 when the scheduler says nothing in 20 s and `timeout`",
    ),
    "/weights_checker": ("GET, POST", "GET, POST", "the embedded engine says that it has none"),
    "/hicache/storage-backend": (
        "GET, PUT, DELETE", "GET, PUT, DELETE",
        "400 without an admin key, as Python; GET tells what the scheduler says now",
    ),
    "/hicache/storage-backend/clear": (
        "POST", "POST", "a failure says so (Python: 400, and that it was cleared)",
    ),
    "/pause_generation": (
        "-", "POST", "mode abort: retracts and aborts; answered once the scheduler has done it",
    ),
    "/continue_generation": ("-", "POST", "answered once the scheduler has done it"),
    "/open_session": ("-", "GET, POST", ""),
    "/close_session": ("-", "GET, POST", "answered once the scheduler has done it"),
    "/route": (
        "GET, PUT of a prefill server", "another port's",
        "of a prefill server; outlives a frontend",
    ),
    "/register_dp_rank": (
        "POST of a prefill server", "another port's", "of a prefill server; outlives a frontend",
    ),
    "/query_dp_ranks": (
        "POST of a prefill server", "another port's", "at most 16384 rooms at once",
    ),
    "/tokenize": ("POST", "POST", "at most 4096 entries; types are strict"),
    "/v1/tokenize": ("POST", "POST", "as /tokenize"),
    "/detokenize": (
        "POST", "POST", "at most 4096 entries; an id outside the vocabulary is 400",
    ),
    "/v1/detokenize": ("POST", "POST", "as /detokenize"),
    "/parse_function_call": ("-", "POST", "the server's parser where the body names none"),
    "/separate_reasoning": ("-", "POST", "the server's parser where the body names none"),
    "/health": ("GET", "GET", "answered at once by any activity of the scheduler"),
    "/health_generate": ("GET", "GET", "as /health, always by a probe"),
    "/ready": ("-", "GET", "503 while starting, draining, or after an unanswered health probe"),
    "/ping": ("-", "GET", "as /ready, but 200 while generation is paused"),
    "/live": ("-", "-", "200 while the process answers"),
    "/": ("-", "GET", "Python's text"),
    "/version": ("-", "-", "versions of engine and frontend"),
    "/model_info": ("GET", "GET", ""),
    "/get_model_info": ("GET", "GET", ""),
    "/server_info": ("GET", "GET", "an allow-list"),
    "/get_server_info": ("-", "GET", "an allow-list"),
    "/v1/models": ("GET", "GET", ""),
    "/v1/models/{model}": ("GET", "GET", "ids with slashes, as Python"),
    "/v1/loads": (
        "GET", "GET",
        "without SGLang's snapshot file: what the scheduler's state says, else our counts",
    ),
    "/metrics": ("GET", "GET with `--enable-metrics`", "GET with `--enable-metrics`, else 404"),
    "/metrics/": ("GET", "GET with `--enable-metrics`", "as /metrics"),
    "/openapi.json": ("-", "GET", "made from our own declarations; `DISABLE_OPENAPI_DOC` hides it"),
    "/docs": ("-", "GET", "needs no internet; `DISABLE_OPENAPI_DOC` hides it"),
}  # fmt: skip

# What is answered with 404, and why.
NOT_SERVED: dict[str, tuple[str, ...]] = {
    "changes the model's weights, or sends them elsewhere": (
        "/update_weights_from_disk", "/update_weights_from_tensor", "/update_weights_from_ipc",
        "/update_weights_from_distributed", "/update_weight_version", "/begin_weight_update",
        "/end_weight_update", "/init_weights_update_group", "/destroy_weights_update_group",
        "/init_weights_send_group_for_remote_instance", "/send_weights_to_remote_instance",
        "/get_remote_instance_transfer_engine_info", "/remote_instance_transfer_engine_info",
        "/get_weights_by_name",
    ),
    "LoRA adapters are loaded when the scheduler starts": (
        "/load_lora_adapter", "/load_lora_adapter_from_tensors", "/unload_lora_adapter",
    ),
    "manages the scheduler's memory, state or caches": (
        "/release_memory_occupation", "/resume_memory_occupation",
        "/set_internal_state", "/slow_down", "/pd_role_switch",
        "/get_hicache_l3_cache_layout", "/add_external_corpus", "/remove_external_corpus",
        "/list_external_corpora",
    ),
    "profiling and logging of SGLang's own processes": (
        "/start_profile", "/stop_profile", "/set_trace_level", "/freeze_gc",
        "/configure_logging", "/start_expert_distribution_record",
        "/stop_expert_distribution_record", "/dump_expert_distribution_record",
    ),
    "another task than generating text": (
        "/encode", "/classify", "/v1/embeddings", "/v1/classify", "/v1/score", "/v1/rerank",
        "/v1/decisions", "/v1/systemone", "/v1/audio/transcriptions", "/v1/realtime",
    ),
    "answers to continue from are kept nowhere: no process of a frontend may hold what another one"
    " needs; `/v1/chat/completions` takes the whole conversation": ("/v1/responses",),
    "Ollama's clients speak to `/v1/` as well": (
        "/api/chat", "/api/generate", "/api/tags", "/api/show",
    ),
}  # fmt: skip
