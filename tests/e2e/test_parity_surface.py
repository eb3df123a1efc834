"""The boundary's names: every class, method, argument and default a scheduler may rely on."""

from __future__ import annotations

import inspect
import socket

import numpy
import pytest

import tpc_server
from tests.e2e.parity_scheduler import by_hand
from tpc_server import (
    DefaultSamplingParams,
    DisaggregationMode,
    IngressRequest,
    MetricsConfig,
    ModelConfig,
    Server,
    ServerArgs,
)
from tpc_server.listen import ListenError

NAMES = [
    "Server", "ServerArgs", "ModelConfig", "DefaultSamplingParams", "DisaggregationMode",
    "MetricsConfig", "IngressRequest",
]  # fmt: skip

# name -> a value of the right type that is not the default
SERVER_ARGS = {
    "model_path": "m", "served_model_name": "served", "tokenizer_path": "t", "revision": "r",
    "load_format": "dummy", "weight_version": "v2", "hicache_storage_backend": "file",
    "hicache_storage_backend_extra_config": "{}", "hicache_storage_prefetch_policy": "wait",
    "hicache_write_policy": "write_back", "host": "::1", "port": 1234, "grpc_port": 1235,
    "log_level": "debug", "log_level_http": "warning", "chat_template": "chatml",
    "default_chat_template_kwargs": '{"a": 1}', "tool_call_parser": "llama3",
    "reasoning_parser": "qwen3", "stream_response_default_include_usage": True,
    "tokenizer_worker_num": 2, "detokenizer_worker_num": 3, "skip_tokenizer_init": True,
    "skip_server_warmup": True, "health_generate_headers": {"x-a": "b"},
    "default_priority_value": 4, "enable_request_header_overrides": True,
    "incremental_streaming_output": True, "disaggregation_mode": DisaggregationMode.Decode,
    "model_config": ModelConfig(context_len=8), "preferred_sampling_params": '{"top_k": 3}',
    "default_max_new_tokens": None, "lora_ids": {"a": "1"}, "enable_strict_thinking": True,
    "limit_mm_data_per_request": [("image", 2)], "allow_auto_truncate": True,
    "enable_return_hidden_states": True, "num_reserved_tokens": 5,
    "tokenizer_model_max_length": 1 << 20, "version": "0.5.23", "max_total_num_tokens": 8192,
    "deployment_info": '{"nnodes": 1}', "launch_server_info": '{"tp_size": 1}',
    "load_snapshot_path": "/dev/shm/x", "load_snapshot_dp_size": 1, "load_snapshot_dp_rank": 1,
    "accelerator": "cpu", "num_accelerators": 1, "metrics": MetricsConfig(multiproc_dir="d"),
}  # fmt: skip
OTHERS = {
    ModelConfig: {
        "context_len": 9, "vocab_size": 10, "is_multimodal": True,
        "default_sampling_params": DefaultSamplingParams(top_p=0.5), "model_type": "llama",
    },
    DefaultSamplingParams: {
        "temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.5, "repetition_penalty": 1.5,
    },
    MetricsConfig: {
        "multiproc_dir": "d", "labels": {"a": "b"}, "priority_label": True,
        "bucket_time_to_first_token": [0.1, 1.0], "bucket_inter_token_latency": [0.1],
        "bucket_e2e_request_latency": [1.0], "bucket_prompt_tokens": [1.0, 2.0],
        "bucket_generation_tokens": [3.0],
    },
}  # fmt: skip


def test_names():
    for name in NAMES:
        assert name in tpc_server.__all__ and inspect.isclass(getattr(tpc_server, name))


def shape(function):
    """(name, default) of each argument that may be given by position, without self."""
    found = inspect.signature(function).parameters.values()
    positional = [p for p in found if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "self"]
    extra = [p for p in found if p.kind is p.KEYWORD_ONLY]
    assert len(positional) + len(extra) == len(found) - ("self" in [p.name for p in found])
    assert all(p.default is not p.empty for p in extra)  # ours; nobody has to give them
    return [(p.name, "required" if p.default is p.empty else p.default) for p in positional]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "__init__",
            [
                ("server_args", "required"), ("port_offset", None), ("to_scheduler_cap", 8192),
                ("from_scheduler_cap", 8192), ("stage_channel_cap", 8192), ("cores", None),
            ],
        ),
        ("recv_requests", [("max", 256)]),
        ("wait_request", [("timeout_ms", 1000)]),
        ("push_decode_result_batch", [("header", "required"), ("data_cols", "required")]),
        ("push_batch", [("header", "required"), ("data_cols", "required")]),
        ("push_control_result", [("rid", "required"), ("payload", "required")]),
        ("push_result", [("rid", "required"), ("payload", "required")]),
        ("push_error", [("rid", "required"), ("message", "required")]),
        ("push_health_ack", []),
        ("shutdown", []),
    ],
)  # fmt: skip
def test_methods(name, expected):
    assert shape(getattr(Server, name)) == expected


def test_aliases_are_the_methods():
    assert Server.push_batch is Server.push_decode_result_batch
    assert Server.push_result is Server.push_control_result


@pytest.mark.parametrize(
    ("kind", "values"), [(ServerArgs, SERVER_ARGS), *OTHERS.items()], ids=lambda v: getattr(
        v, "__name__", ""
    )
)  # fmt: skip
def test_arguments_are_taken_and_all_have_defaults(kind, values):
    made = kind(**values)
    default = kind()
    for name, value in values.items():
        assert getattr(made, name) == value
        assert getattr(default, name) != value, f"{name}: choose a value that is not the default"
        alone = kind(**{name: value})
        assert getattr(alone, name) == value


@pytest.mark.parametrize("kind", [ServerArgs, *OTHERS], ids=lambda kind: kind.__name__)
def test_an_unknown_argument_is_named(kind):
    with pytest.raises(TypeError, match=r"`tensor_parallel`"):
        kind(tensor_parallel=2)
    with pytest.raises(TypeError):
        kind("by position")


WRONG: dict[str, object] = {
    "model_path": None, "served_model_name": 3, "host": b"x", "port": "80", "grpc_port": 1.5,
    "log_level": 20, "default_chat_template_kwargs": "[1]", "skip_tokenizer_init": 1,
    "incremental_streaming_output": "yes", "tokenizer_worker_num": True,
    "health_generate_headers": [("a", "b")], "default_priority_value": "high",
    "model_config": {"context_len": 8}, "preferred_sampling_params": {"top_k": 3},
    "default_max_new_tokens": "128", "lora_ids": ["a"], "limit_mm_data_per_request": "image=2",
    "num_reserved_tokens": None, "deployment_info": "{", "launch_server_info": {"a": 1},
    "load_snapshot_dp_size": "1", "metrics": {"labels": {}}, "max_total_num_tokens": 1.0,
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_mistyped_argument_is_named(name):
    with pytest.raises(TypeError, match=rf"ServerArgs: field `{name}` must be "):
        ServerArgs(**{**SERVER_ARGS, name: WRONG[name]})


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (ServerArgs, "disaggregation_mode", "sideways"),
        (ModelConfig, "default_sampling_params", {"top_p": 0.5}),
        (MetricsConfig, "priority_label", "yes"),
    ],
)
def test_a_mistyped_object_is_named(kind, name, value):
    with pytest.raises(TypeError, match=rf"{kind.__name__}: field `{name}` must be "):
        kind(**{name: value})


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_out_of_range_is_named(port):
    with pytest.raises(TypeError, match="`port`"):
        ServerArgs(port=port)


def test_modes_of_disaggregation():
    modes = [getattr(DisaggregationMode, n) for n in ("Null", "Prefill", "Decode")]
    assert len(set(modes)) == 3
    for mode in modes:
        assert ServerArgs(disaggregation_mode=mode).disaggregation_mode == mode


def test_a_server_needs_server_args():
    with pytest.raises(TypeError, match="server_args must be ServerArgs"):
        Server({"port": 0})


def test_what_a_scheduler_gets(model_folder):
    """A header in bytes, and named arrays beside it that no one can write to."""
    with by_hand(model_folder) as run:
        run.send("abc", return_logprob=True, token_ids_logprob=[5, 9])
        requests = []
        for _ in range(200):
            requests += run.server.recv_requests()
            if requests:
                break
            run.server.wait_request(100)
        (request,) = requests
        assert isinstance(request, IngressRequest) and type(request.header) is bytes
        assert [name for name, _ in request.buffers] == ["input_ids", "token_ids_logprob"]
        for _, values in request.buffers:
            assert type(values) is numpy.ndarray and values.dtype == numpy.int64
            assert values.ndim == 1 and not values.flags.writeable
            assert memoryview(values.data).cast("B").nbytes == values.nbytes  # as SGLang copies it
        assert [values.tolist() for _, values in request.buffers] == [[97, 98, 99], [5, 9]]


def test_the_port_is_the_sum(model_folder):
    for _ in range(5):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            free = probe.getsockname()[1]
        args = ServerArgs(
            model_path=str(model_folder), port=free - 3, log_level="error", skip_server_warmup=True
        )
        try:
            server = Server(args, port_offset=3)
        except ListenError:  # somebody else was faster
            continue
        with server:
            assert server.http_port == free
            socket.create_connection(("127.0.0.1", free), 10).close()
        return
    raise AssertionError("no port stays free")
