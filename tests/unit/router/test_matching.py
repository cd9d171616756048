from __future__ import annotations

import pytest

from router.matching import Surface, asks_otherwise, is_inference, is_inference_call, match

V2, OPENAI, PLAIN = Surface.V2, Surface.OPENAI, Surface.PLAIN


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/v2/models/resnet/infer", (V2, "resnet", "")),
        ("/v2/models/resnet", (V2, "resnet", "")),
        ("/v2/models/resnet/", (V2, "resnet", "")),
        ("/v2/models/resnet?x=/versions/9/", (V2, "resnet", "")),
        ("/v2/models/resnet/versions/3/infer", (V2, "resnet", "3")),
        ("/v2/models/resnet/versions/3", (V2, "resnet", "3")),
        ("/v2/models/resnet/versions/3?a=b/c", (V2, "resnet", "3")),
        ("/v2/models/resnet/versions/", (V2, "resnet", "")),
        ("/v2/models/resnet/versions", (V2, "resnet", "")),
        ("/v2/models/a%20b%2Fc/versions/1%2e0/infer", (V2, "a b/c", "1.0")),
        ("/v2/models/%C3%A9/infer", (V2, "é", "")),
        ("/v2/models/%FF/infer", (V2, "\ufffd", "")),
        ("/v2/models/100%/infer", (V2, "100%", "")),
        ("/v2/models/%2541/infer", (V2, "%41", "")),
        ("/v2/models/", (V2, "", "")),
        ("/v2/models//versions/1/infer", (V2, "", "")),
        ("/v2/models", (V2, "", "")),
        ("/v2", (V2, "", "")),
        ("/v2?x", (V2, "", "")),
        ("/v2/health/ready", (V2, "", "")),
        ("/v20/models/x", (PLAIN, "", "")),
        ("/v1/chat/completions", (OPENAI, "", "")),
        ("/v1", (OPENAI, "", "")),
        ("/v1beta/x", (PLAIN, "", "")),
        ("/openai/v1/completions", (OPENAI, "", "")),
        ("/openai/v1", (OPENAI, "", "")),
        ("/openai/v12", (PLAIN, "", "")),
        ("/openai", (PLAIN, "", "")),
        ("/predict", (PLAIN, "", "")),
        ("/", (PLAIN, "", "")),
        ("", (PLAIN, "", "")),
        ("*", (PLAIN, "", "")),
        ("example.org:443", (PLAIN, "", "")),
        ("http://example.org", (PLAIN, "", "")),
        ("http://example.org/v2/models/m/versions/2/infer", (V2, "m", "2")),
        ("HTTPS://u@example.org:8443/v1/models", (OPENAI, "", "")),
    ],
)
def test_what_a_target_names(target: str, expected: tuple[Surface, str, str]) -> None:
    assert match(target) == expected
    assert match(target.encode()) == expected


def test_bytes_that_are_not_utf8_match_no_model() -> None:
    assert match(b"/v2/models/\xff\xfe/infer") == (V2, "\ufffd\ufffd", "")
    assert match("/v2/models/\udcff/infer") == (V2, "\ufffd", "")


@pytest.mark.parametrize(
    ("target", "is_one"),
    [
        ("/v2/models/m/infer", True),
        ("/v2/models/m/versions/2/infer?x=/y", True),
        ("http://h/v2/models/m/generate", True),
        ("/v2/models/m/generate_stream", True),
        ("/v2/models/m/infer_stream", True),
        ("/v2/rerank", True),
        ("/triton/v2/models/m/infer", True),
        ("/v2/models/infer", False),
        ("/v2/models/m/versions/infer", False),
        ("/v2/models/m/ready", False),
        ("/v2/models/m/trace/setting", False),
        ("/v2/repository/models/m/unload", False),
        ("/v2/repository/models/infer", False),
        ("/v2/logging", False),
        ("/v2/systemsharedmemory/region/r/register", False),
        ("/v2", False),
        ("/v2?x=/models/m/infer", False),
        ("/triton/v2/repository/models/m/load", False),
        ("//v2/repository/models/m/load", False),
        ("/%76%32/repository/models/m/load", False),
        ("/v1/chat/completions", True),
        ("/openai/v1/embeddings", True),
        ("/v1/models/m:predict", True),
        ("/v1/models/m", False),
        ("/v1/load_lora_adapter", False),
        ("/v1/files", False),
        ("/v1", False),
        ("/predict", True),
        ("/api/v2/predict", True),
        ("/", True),
        ("/sleep?level=2", False),
        ("/engine/wake_up", False),
        ("/%73leep", False),
        ("/flush_cache", False),
        ("/update_weights_from_disk", False),
        ("/sleep/predict", True),
    ],
)
def test_what_is_inference(target: str, is_one: bool) -> None:
    assert is_inference(b"POST", target.encode()) is is_one
    assert not is_inference(b"GET", target.encode())
    assert not is_inference(b"DELETE", target.encode())


@pytest.mark.parametrize(
    ("target", "does"),
    [
        ("/v2/models/m/infer", False),
        ("/v2/models/m/trace/setting", True),
        ("/v2/repository/models/m/unload", True),
        ("/triton/v2/repository/index", True),
        ("/v2/systemsharedmemory/region/r/register", True),
        ("/sleep?level=2", True),
        ("/v1/load_lora_adapter", True),
        ("/openai/v1/unload_lora_adapter", True),
        ("/v1/completions", False),
        ("/v1/completions?x=/sleep", False),
        ("/v2/models/m/versions/1/generate_stream", False),
        ("/v2/models/m/trace/setting?x=/infer", True),
        ("/v1/whatever", False),
        ("/predict", False),
        ("/api/v2/predict", False),
    ],
)
def test_what_surely_asks_for_something_else_than_an_answer(target: str, does: bool) -> None:
    assert asks_otherwise(target.encode()) is does


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("/inference.GRPCInferenceService/ModelInfer", True),
        ("/inference.GRPCInferenceService/ModelStreamInfer", True),
        ("/inference.GRPCInferenceService/ModelReady", False),
        ("/inference.GRPCInferenceService/RepositoryModelUnload", False),
        ("/grpc.health.v1.Health/Check", False),
        ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", False),
        ("/some.Service/Predict", True),
        ("/inference.model_repository.ModelRepositoryService/RepositoryModelUnload", False),
        ("/tensorflow.serving.ModelService/HandleReloadConfigRequest", False),
        ("/tensorflow.serving.PredictionService/Predict", True),
        ("/org.pytorch.serve.grpc.management.ManagementAPIsService/ScaleWorker", False),
        ("/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions", True),
        ("/vllm.grpc.engine.VllmEngine/Generate", True),
        ("/vllm.grpc.engine.VllmEngine/HealthCheck", False),
        ("/sglang.grpc.scheduler.SglangScheduler/Embed", True),
        ("/sglang.grpc.scheduler.SglangScheduler/Abort", False),
    ],
)
def test_which_calls_are_inference(path: str, is_one: bool) -> None:
    assert is_inference_call(path.encode()) is is_one
