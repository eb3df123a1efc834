"""The default model, for real: a sensible answer, stop strings by its own tokenizer."""

from __future__ import annotations

import pytest

from tests.llama_driver import Driver
from tpc_server.bootstrap.fetch import model_path
from tpc_server.engines.llama.decoding import make_decode
from tpc_server.engines.llama.engine import LlamaEngine
from tpc_server.engines.llama.settings import LlamaSettings
from tpc_server.text.load import load_tokenizer

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]

#: "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
QUESTION = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]


def test_it_knows_the_capital_of_france() -> None:
    tokenizer = load_tokenizer(str(model_path()))
    decode = make_decode(tokenizer.json_text)
    engine = LlamaEngine.load(model_path(), LlamaSettings(), lambda text, done: None, decode)
    assert engine.vocab_size == 49152 and engine.context_len == 8192
    assert engine.eos_ids == (2,) and engine.bos_id == 1
    assert engine.chat_template is not None and "im_start" in engine.chat_template
    driver = Driver()
    driver.generate("answer", QUESTION, top_k=1, max_new_tokens=30, stream=True)
    driver.generate("stop", QUESTION, top_k=1, stop_strs=["ance is"], stop_str_max_len=3)
    driver.run(engine)
    text = decode(driver.ids("answer"))
    assert text.startswith("The capital of France is Paris")
    assert driver.finish("answer")["type"] in ("stop", "length")
    assert decode(driver.ids("stop")) == "The capital of France is"
    assert driver.finish("stop") == {"type": "stop", "matched": "ance is"}
