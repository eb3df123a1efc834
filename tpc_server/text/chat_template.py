"""Chat templates, rendered as Hugging Face transformers does. Owner: the thread that made one.

Jinja in an immutable sandbox, with the same extensions, filters and globals. The templates are the
operator's and trusted; the messages are not. So the output, the time and the numbers that a
template may be talked into have bounds, and whatever goes wrong is one `ChatTemplateError`.

Only who has a template imports this module: it imports jinja2.
"""

from __future__ import annotations

import json
import marshal
import time
from datetime import datetime
from itertools import islice
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from .chat_messages import bare_functions, for_template, split_final
from .chat_prompt import ChatTemplateError, chat, is_long
from .chat_source import DEFAULT, ChatSource
from .content_format import content_format

#: The template that is taken when a request has tools.
_TOOL_USE: Final = "tool_use"
MAX_OUTPUT_CHARS: Final = 64 << 20
MAX_RENDER_S: Final = 10.0
#: Numbers of all `range`s of one rendering; a single one has jinja2's own bound.
MAX_RANGES: Final = 10 * MAX_RANGE
_MAX_POWER: Final = 1024
_CHUNKS: Final = 64  # pieces of output between two looks at the bounds
_UNWATCHED_CHARS: Final = 8 * 1024  # of a conversation that is rendered on the core
_LOOKUPS: Final = 10_000  # of attributes and items between two looks at the clock
# What the sandbox lets a template have anyway, looked up here without its checks.
_DICT_METHODS: Final = frozenset(dir(dict))
_DICT_READS: Final = frozenset(("get", "items", "keys", "values"))
_STR_METHODS: Final = frozenset(
    name for name in dir(str) if name[0] != "_" and not name.startswith("format")
)
#: Arguments of transformers' `apply_chat_template` and names that are always given.
RESERVED: Final = frozenset(
    (
        "messages", "conversation", "tools", "add_generation_prompt", "continue_final_message",
        "chat_template", "tokenize", "padding", "truncation", "max_length", "return_tensors",
        "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
    )
)  # fmt: skip


def compile_templates(templates: dict[str, str]) -> dict[str, tuple[bytes, str]]:
    """(marshalled code, content format) of each template; plain data, for every core.

    Raises ChatTemplateError naming the one that does not compile.
    """
    environment = _Environment()
    compiled = {}
    for name, text in templates.items():
        try:
            code = marshal.dumps(environment.compile(text))
            compiled[name] = code, content_format(environment, text)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"chat template {name!r} does not compile: line {error.lineno}: {error}"
            ) from None
        except (RecursionError, ValueError, SyntaxError) as error:
            raise ChatTemplateError(f"chat template {name!r} does not compile: {error!r}") from None
    return compiled


class ChatTemplate:
    """The templates of one model, ready to render."""

    __slots__ = ("_base", "_compiled", "_environment", "_kwargs")

    def __init__(self, source: ChatSource) -> None:
        """From compiled templates, or from texts; raises ChatTemplateError."""
        self._environment = environment = _Environment()
        self._kwargs = dict(source.default_kwargs)
        check_kwargs(self._kwargs)
        # One dict makes the variables of a rendering; the globals are copied only here.
        self._base = {**environment.globals, **source.special_tokens}
        compiled = source.compiled or compile_templates(source.templates)
        self._compiled: dict[str, tuple[Any, str]] = {
            name: (environment.template_class.from_code(environment, marshal.loads(code), {}), form)
            for name, (code, form) in compiled.items()
        }

    def prompt(self, chat: tuple[Any, ...]) -> tuple[str, str]:
        """(text, text to put behind it) of a `chat_prompt.CHAT`; raises ChatTemplateError."""
        _, messages, tools, kwargs, add, continue_final, _, plain = chat
        watched = is_long(chat, _UNWATCHED_CHARS)
        if not plain:
            messages = for_template(messages, self._pick(tools)[1])
        behind = ""
        if add is None or continue_final:
            messages, behind = split_final(messages, continue_final)
        add = add is not False
        try:
            return self.render(messages, tools, add, kwargs, watched), behind
        except ChatTemplateError:
            bare = bare_functions(tools or [])
            if not tools or bare == tools:
                raise
        return self.render(messages, bare, add, kwargs, watched), behind

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        kwargs: dict[str, Any] | None = None,
        watched: bool = True,
    ) -> str:
        """The text of these messages, which go to the template as they are. `watched`: what is
        looked up is counted, too: with so much to go through, a loop may run for ever without a
        word."""
        compiled, _ = self._pick(tools)
        variables = {**self._base, "documents": None, **self._kwargs}
        if kwargs:
            check_kwargs(kwargs)
            variables.update(kwargs)
        _check_documents(variables["documents"])
        variables["messages"] = messages
        variables["tools"] = tools
        variables["add_generation_prompt"] = add_generation_prompt
        return self._environment.run(compiled, variables, watched)

    def _pick(self, tools: list[dict[str, Any]] | None) -> tuple[Any, str]:
        """(compiled template, content format)."""
        compiled = self._compiled
        if tools is not None and _TOOL_USE in compiled:
            return compiled[_TOOL_USE]
        if DEFAULT in compiled:
            return compiled[DEFAULT]
        if not compiled:
            raise ChatTemplateError("this model has no chat template")
        return next(iter(compiled.values()))


def warnings(source: ChatSource, tool_call_parser: str | None) -> list[str]:
    """What an operator should know of a template before the first request meets it."""
    found = []
    try:
        ChatTemplate(source).prompt(chat([{"role": "user", "content": "Hello"}]))
    except ChatTemplateError as error:
        found.append(f"the chat template cannot render a plain message: {error}")
    texts = [source.templates[name] for name in (_TOOL_USE, DEFAULT) if name in source.templates]
    if tool_call_parser and not any("tools" in text for text in texts or source.templates.values()):
        found.append(
            f"--tool-call-parser {tool_call_parser}: the chat template never mentions `tools`, so"
            " that the model is not told of them"
        )
    return found


def check_kwargs(kwargs: dict[str, Any]) -> None:
    """Refuses variables that are not the template's to take. Raises ChatTemplateError."""
    if not RESERVED.isdisjoint(kwargs):
        name = sorted(RESERVED.intersection(kwargs))[0]
        raise ChatTemplateError(f"chat_template_kwargs.{name} is not a variable of the template")


def _check_documents(documents: Any) -> None:
    if documents is None:
        return
    if type(documents) is not list or not all(type(one) is dict for one in documents):
        raise ChatTemplateError("chat_template_kwargs.documents must be a list of objects")


class _Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training; here it marks nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own way

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox of one thread."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=(_Generation, loopcontrols)
        )
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["range"] = self._range
        self._ranges_left = 0
        self._lookups = 0
        self._ends = 0.0

    def run(self, template: Any, variables: dict[str, Any], watched: bool) -> str:
        """Render; `variables` is used up. Raises ChatTemplateError."""
        self._ranges_left = MAX_RANGES
        context = template.new_context(variables, shared=True)
        pieces = template.root_render_func(context)
        if watched:
            self._lookups = _LOOKUPS
            self._ends = time.monotonic() + MAX_RENDER_S
            # Over the methods, which then cost the usual, short conversation nothing.
            vars(self).update(getattr=self._watched_getattr, getitem=self._watched_getitem)
        try:
            return _collect(pieces)
        except ChatTemplateError:
            raise
        except jinja2.UndefinedError as error:
            raise ChatTemplateError(f"the chat template failed: {error}") from None
        except jinja2.TemplateError as error:
            message = str(error) or type(error).__name__
            raise ChatTemplateError(message) from None
        except RecursionError:
            raise ChatTemplateError("the chat template recurses too deeply") from None
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise ChatTemplateError(f"the chat template failed: {what}") from None
        finally:
            if watched:
                del self.__dict__["getattr"], self.__dict__["getitem"]
            pieces.close()
            _release(context)

    def _watched_getattr(self, obj: Any, attribute: str) -> Any:
        self._lookups -= 1
        if self._lookups < 0:
            self._look_at_the_clock()
        return _Environment.getattr(self, obj, attribute)

    def _watched_getitem(self, obj: Any, argument: Any) -> Any:
        self._lookups -= 1
        if self._lookups < 0:
            self._look_at_the_clock()
        return _Environment.getitem(self, obj, argument)

    def _look_at_the_clock(self) -> None:
        self._lookups = _LOOKUPS
        if time.monotonic() > self._ends:
            raise ChatTemplateError(_too_slow())

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute`, as the sandbox finds it, but sooner for what templates use most."""
        kind = type(obj)
        if kind is dict:
            if attribute not in _DICT_METHODS:
                if attribute in obj:
                    return obj[attribute]
                return self.undefined(obj=obj, name=attribute)
            if attribute in _DICT_READS:
                return getattr(obj, attribute)
        elif kind is str:
            if attribute in _STR_METHODS:
                return getattr(obj, attribute)
        elif (kind is Namespace or kind is LoopContext) and attribute[0] != "_":
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Repeated texts and powers of bounded size."""
        if operator == "**":
            if isinstance(right, int) and abs(right) > _MAX_POWER:
                raise ChatTemplateError(f"the chat template asks for a power of {right}")
        else:
            for one, other in ((left, right), (right, left)):
                repeats = isinstance(one, int) and isinstance(other, (str, list, tuple))
                if repeats and one * len(other) > MAX_OUTPUT_CHARS:
                    raise ChatTemplateError(_TOO_LONG)
        return super().call_binop(context, operator, left, right)

    def _range(self, *args: int) -> range:
        numbers = range(*args)
        self._ranges_left -= len(numbers)
        if self._ranges_left < 0 or len(numbers) > MAX_RANGE:
            raise ChatTemplateError("the chat template loops over too many numbers")
        return numbers


_TOO_LONG: Final = f"the chat template makes more than {MAX_OUTPUT_CHARS} characters"


def _too_slow() -> str:
    return f"the chat template ran longer than {MAX_RENDER_S:g} seconds"


def _collect(pieces: Any) -> str:
    """All output, within the bounds."""
    out: list[str] = []
    room = MAX_OUTPUT_CHARS
    ends = 0.0
    while some := list(islice(pieces, _CHUNKS)):
        text = "".join(some)
        room -= len(text)
        if room < 0:
            raise ChatTemplateError(_TOO_LONG)
        out.append(text)
        if len(some) < _CHUNKS:
            break
        now = time.monotonic()
        if not ends:
            ends = now + MAX_RENDER_S
        elif now > ends:
            raise ChatTemplateError(_too_slow())
    return "".join(out)


def _release(context: Any) -> None:
    """Breaks the cycles between a rendering and its macros (the collector is off, ADR 4)."""
    for value in context.vars.values():
        if type(value) is Macro:
            value._func = None  # type: ignore[assignment]
    context.vars.clear()
    context.parent.clear()


def _raise_exception(message: Any) -> None:
    raise jinja2.TemplateError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, unlike jinja2's own filter, which escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
