"""What transformers makes of chat templates and messages. Owner: a process of its own.

usage: python transformers_reference.py < QUESTIONS.json > ANSWERS.json

Runs in an environment that has transformers, and nothing of this project. Questions: `templates`
(name -> text), `cases` (name -> messages and arguments), `special_tokens`, `now` (an ISO date).
Answers: template -> case -> [text, null] or [null, error].
"""

from __future__ import annotations

import datetime
import json
import sys
from typing import Any

import jinja2
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils


def main() -> None:
    questions = json.load(sys.stdin)
    now = datetime.datetime.fromisoformat(questions["now"])

    class Stopped:
        @staticmethod
        def now() -> datetime.datetime:
            return now

    chat_template_utils.datetime = Stopped
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), **questions["special_tokens"]
    )
    answers = {
        name: {case: answer(tokenizer, text, **given) for case, given in questions["cases"].items()}
        for name, text in questions["templates"].items()
    }
    json.dump(answers, sys.stdout)


def answer(
    tokenizer: Any,
    template: str,
    messages: list[Any],
    tools: Any = None,
    add_generation_prompt: bool = True,
    kwargs: dict[str, Any] | None = None,
) -> tuple[str | None, str | None]:
    try:
        text = tokenizer.apply_chat_template(
            messages, tools=tools, chat_template=template, tokenize=False,
            add_generation_prompt=add_generation_prompt, **(kwargs or {}),
        )  # fmt: skip
    except jinja2.TemplateError as error:
        return None, str(error)
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    return text, None


if __name__ == "__main__":
    main()
