import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from hybridrt.engine.tokenizer import Tokenizer

CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

INSTRUCT = """{{ bos_token }}
{% if messages[0]['role'] == 'system' %}
    {% set system = messages[0]['content'] %}
    {% set messages = messages[1:] %}
{% endif %}
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('roles should alternate') }}
    {% endif %}
    {% if message['role'] == 'user' %}
[INST] {{ (system ~ '\\n' if system is defined and loop.first else '')
        + message['content'] | trim }} [/INST]
    {% elif message['content'] is defined %}
        {% generation %}
{{ message['content'] }}{{ eos_token }}
        {% endgeneration %}
    {% endif %}
    {% if loop.index > 50 %}{% break %}{% endif %}
{% endfor %}"""

TOOLS = """{% set ns = namespace(seen=0) %}{% if tools %}
# Tools
{% for tool in tools %}{{ tool | tojson(indent=2) }}
{% endfor %}{% endif %}
{% for message in messages %}
<{{ message.role }}>{% if message.tool_calls %}{% for call in message.tool_calls %}
{{ call.function.arguments | tojson }}
{{ {"b": 1, "a": [1.5, none, true]} | tojson(sort_keys=true) }}
{% endfor %}{% else %}{{ message.content }}{% endif %}{% set ns.seen = ns.seen + 1 %}
{% endfor %}
{{ ns.seen }} {{ custom | default('none') }} {{ documents is none }} {{ missing }}"""

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": " Hi <b>& 你好 "}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ],
]
CALLS = [
    {"role": "user", "content": "the weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"arguments": {"city": "Köln <1>"}}}],
    },
]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"city": "string"}}}


def tokenizer_with(folder: Path, template: Any = None, jinja: str | None = None) -> Tokenizer:
    backend = Backend(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2}, unk_token="a"))
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "__type": "AddedToken"},
    }
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if jinja is not None:
        (folder / "chat_template.jinja").write_text(jinja)
    tokenizer = Tokenizer.from_directory(folder)
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize("template", [CHATML, INSTRUCT, TOOLS], ids=["chatml", "instruct", "tools"])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("kwargs", [{}, {"add_generation_prompt": False, "custom": [1, "x"]}])
def test_text_is_that_of_transformers(
    template: str, chat: list[dict[str, Any]], kwargs: dict[str, Any], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = tokenizer_with(tmp_path, template)
    oracle = transformers.AutoTokenizer.from_pretrained(tmp_path)
    options = {"add_generation_prompt": True, **kwargs}
    expected = oracle.apply_chat_template(chat, tokenize=False, **options)
    assert tokenizer.apply_chat_template(chat, **kwargs) == expected


def test_tool_calls_read_as_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    named = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": TOOLS}]
    tokenizer = tokenizer_with(tmp_path, named)
    oracle = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for chat, tools in [(CALLS, [TOOL]), (CHATS[1], None)]:
        expected = oracle.apply_chat_template(chat, tools=tools, tokenize=False)
        found = tokenizer.apply_chat_template(chat, add_generation_prompt=False, tools=tools)
        assert found == expected


def test_the_jinja_file_comes_before_the_config(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, template="config", jinja="file {{ eos_token }}")
    assert tokenizer.apply_chat_template(CHATS[0]) == "file </s>"


def test_an_argument_comes_before_a_special_token(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, template="{{ eos_token }}")
    assert tokenizer.apply_chat_template(CHATS[0], eos_token="!") == "!"


def test_dates_are_todays(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, template="{{ strftime_now('%Y-%m-%d') }}")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", tokenizer.apply_chat_template(CHATS[0]))


def test_without_a_template_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no chat template; put one into chat_template\.jinja"):
        tokenizer_with(tmp_path).apply_chat_template(CHATS[0])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no system here') }}", "TemplateError: no system here"),
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ messages[0].content.nothing.more }}", "UndefinedError"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ raise_exception.__globals__.x }}", "SecurityError"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "OverflowError"),
        ("{% include 'x' %}", "TypeError|TemplateNotFound"),
    ],
)
def test_what_a_template_does_wrong_is_an_error_that_names_it(
    template: str, message: str, tmp_path: Path
) -> None:
    tokenizer = tokenizer_with(tmp_path, jinja=template)
    with pytest.raises(ValueError, match=rf"chat_template\.jinja: ({message})"):
        tokenizer.apply_chat_template(CHATS[0])


@pytest.mark.parametrize(
    "template", [7, [], [{"name": "default"}], ["x"], [{"name": "a", "template": 1}]]
)
def test_a_malformed_template_is_an_error_that_names_the_file(
    template: Any, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: chat_template should be"):
        tokenizer_with(tmp_path, template)


def test_named_templates_need_a_default(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, [{"name": "rag", "template": "x"}])
    with pytest.raises(ValueError, match=r"has \['rag'\]; should have one named 'default'"):
        tokenizer.apply_chat_template(CHATS[0])


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], r"messages=\[\]"),
        (["hi"], r"messages\[0\]='hi': should be a dict with a 'role'"),
        ([*CHATS[0], {"content": "x"}], r"messages\[1\]="),
        ([{"role": "user", "content": object()}], r"messages\[0\]\['content'\] is a object"),
        ([{"role": "user", "content": [{"x": print}]}], r"\['content'\]\[0\]\['x'\] is a builtin"),
    ],
)
def test_messages_are_checked(messages: Any, message: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, CHATML)
    with pytest.raises(ValueError, match=message):
        tokenizer.apply_chat_template(messages)
