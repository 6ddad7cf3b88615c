#!/usr/bin/env python3
"""Makes tests/text/data/chat_templates.json: chat templates, conversations, and the text that transformers renders.

    python tools/make_chat_golden.py --out tests/text/data/chat_templates.json

Needs transformers (5.x) with jinja2. Every case is rendered by transformers' render_jinja_template, with the clock fixed at
NOW. The file contains

    templates  templates that are used more than once; cases refer to them by index
    inputs     conversations with their variables; cases refer to them by index
    cases      [name, template or its index, index of input, outcome, text]; outcome is "text" (text is the rendering), "raised" (the template
               called raise_exception with text), "undefined" (jinja2's UndefinedError, text is its message) or "error"

The templates of Llama 2, Llama 3, 3.1 and 3.2, Mistral and ChatML follow the documented prompt formats of these models. The others
are small cases for white space control, operators, filters, tests, methods and scopes.
"""

import argparse
import datetime
import itertools
import json

import jinja2
from transformers.utils import chat_template_utils

NOW = datetime.datetime(2024, 7, 6, 15, 4, 9)

SYSTEM = {"role": "system", "content": "You are terse. "}
USER = {"role": "user", "content": " What is 2+2? "}
ASSISTANT = {"role": "assistant", "content": "4\n"}
CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ASSISTANT, {"role": "user", "content": "And \"3+3\"? <b>&amp;</b> Grüße 你好 🙂"}],
    "system-turns": [SYSTEM, USER, ASSISTANT, {"role": "user", "content": "Thanks.\n\nBye"}],
    "assistant-last": [SYSTEM, USER, ASSISTANT],
    "assistant-first": [ASSISTANT, USER],
    "two-users": [USER, USER],
    "odd-role": [USER, {"role": "critic", "content": "hm"}],
    "late-system": [USER, SYSTEM],
    "empty": [],
    "blank": [{"role": "user", "content": ""}],
    "thinking": [USER, {"role": "assistant", "content": "<think>\nsum\n</think>\n\n4"}, USER],
}
TOKENS = {
    "llama2": ("<s>", "</s>"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>"),
    "chatml": ("", "<|im_end|>"),
}

LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA2_SPACED = """{% if messages[0]['role'] == 'system' %}
    {% set loop_messages = messages[1:] %}
    {% set system_message = '<<SYS>>\\n' + messages[0]['content'] | trim + '\\n<</SYS>>\\n\\n' %}
{% else %}
    {% set loop_messages = messages %}
    {% set system_message = '' %}
{% endif %}
{% for message in loop_messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate: ' ~ message.role ~ ' at ' ~ loop.index) }}
    {% endif %}
    {% if loop.first %}
        {% set content = system_message + message['content'] %}
    {% else %}
        {% set content = message['content'] %}
    {% endif %}
    {% if message['role'] == 'user' %}
{{ bos_token + '[INST] ' + content | trim + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' -%}
{{ ' ' + content | trim + ' ' + eos_token }}
    {%- endif %}
{% endfor %}
"""
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + "
    "'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
# 3.1 and 3.2 share their tools branches; they differ in the date and in how tools turns are folded in.
LLAMA31_HEAD = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
%DATE%
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message is cut off the front, so that it can be placed #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message, and the tools that are built in #}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "You have access to the following functions. To call a function, please respond with JSON for a function call." }}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}
    {{- "Do not use variables.\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{#- Tools in the first user message, where it is the place for them #}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {{- "Given the following functions, please respond with a JSON for a function call " }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
            {{- "<|python_tag|>" + tool_call.name + ".call(" }}
            {%- for arg_name, arg_val in tool_call.arguments | items %}
                {{- arg_name + '="' + arg_val + '"' }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- endif %}
                {%- endfor %}
            {{- ")" }}
        {%- else  %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
            {{- '{"name": "' + tool_call.name + '", ' }}
            {{- '"parameters": ' }}
            {{- tool_call.arguments | tojson }}
            {{- "}" }}
        {%- endif %}
        {%- if builtin_tools is defined %}
            {{- "<|eom_id|>" }}
        {%- else %}
            {{- "<|eot_id|>" }}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
LLAMA31 = LLAMA31_HEAD.replace("%DATE%", """{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}""")
LLAMA32 = LLAMA31_HEAD.replace("%DATE%", """{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}""")
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- Roles alternate, tools apart #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""
ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
PLAIN = """{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- 'Assistant: ' }}{% generation %}{{ message.content | trim }}{{ eos_token }}{% endgeneration %}
{%- else %}
{{- message.role | title ~ ': ' ~ message.content | trim ~ '\\n' }}
{%- endif %}
{%- endfor %}
{{- 'Assistant:' if add_generation_prompt }}"""
MODELS = [
    ("llama2", LLAMA2, "llama2"), ("llama2-spaced", LLAMA2_SPACED, "llama2"), ("llama3", LLAMA3, "llama3"),
    ("llama3.1", LLAMA31, "llama3"), ("llama3.2", LLAMA32, "llama3"), ("chatml", CHATML, "chatml"), ("qwen", QWEN, "chatml"),
    ("mistral", MISTRAL, "llama2"), ("zephyr", ZEPHYR, "llama2"), ("gemma", GEMMA, "llama2"), ("plain", PLAIN, "llama2"),
]

VALUES = ["0", "3", "-2", "true", "2.5", "'ab'", "''", "[1, 2]", "(1,)", "{'a': 1}", "none", "missing"]
MORE_VALUES = ["' Hello big-world (x) '", "'ÄÖ é\\u00a0'", "messages", "messages[0]", "'x\\ty\\nz'", "[]", "{}", "()", "'42'",
               "' 7 '", "'4.9'", "-2.5", "['b', 'a']", "[['x', 1.5], {'k': none}]", "'it\\'s'", "'\"q\" \\'s\\''", "1e20", "1e-7",
               "0.1", "100000.0", "'\\x07\\u200b'", "false", "[missing]", "'</script> & \\u2028'"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
FILTERS = ["abs", "capitalize", "count", "default", "default('D')", "default('D', true)", "d('x', boolean=true)", "first", "int",
           "int(5)", "items|list", "join", "join(', ')", "join(d='-')", "join(',', attribute='role')", "last", "length", "list",
           "lower", "map('upper')|list", "map(attribute='role')|list", "map(attribute='none', default=0)|list", "reject|list",
           "reject('equalto', 1)|list", "rejectattr('role', 'equalto', 'user')|list", "replace('a', 'XY')", "replace('', '-')",
           "replace('a', 'b', 1)", "reverse|list", "select|list", "select('string')|list", "selectattr('role')|list",
           "selectattr('role', '==', 'user')|list|length", "string", "title", "tojson", "tojson(indent=2)",
           "tojson(ensure_ascii=true)", "tojson(separators=(',', ':'))", "tojson(sort_keys=true, indent=0)", "trim", "trim('ab ')",
           "upper", "sort", "sort(reverse=true)", "sort(attribute='role')|length",
           "unique|list", "min", "max", "max(attribute='content')", "dictsort", "dictsort(by='value', reverse=true)", "indent",
           "indent(2, true)", "indent('>', blank=true)", "safe", "safe + '<&>\"\\''", "safe ~ '<'"]
TESTS = ["boolean", "callable", "defined", "divisibleby 3", "divisibleby(2)", "eq 3", "equalto 'ab'", "even", "false", "float",
         "ge 3", "gt(0)", "in [0, 'ab', none]", "integer", "iterable", "le 3", "lower", "lt 1", "mapping", "ne 3", "none",
         "not none", "not string", "number", "odd", "sequence", "string", "true", "undefined", "upper"]
METHODS = ["strip()", "lstrip()", "rstrip()", "strip(' H)')", "startswith('a')", "startswith((' ', 'a'))", "endswith('b')",
           "split()", "split('b')", "split(' ', 1)", "split(maxsplit=1)", "split(none, 2)", "splitlines()", "replace('l', 'L')",
           "replace('l', 'L', 1)", "upper()", "lower()", "title()", "capitalize()", "find('b')", "find('zz')", "join(['x', 'y'])",
           "removeprefix('a')", "removesuffix('b')", "get('a')", "get('zz')", "get('zz', 9)", "keys()|list", "values()|list",
           "items()|list"]
SUBSCRIPTS = ["[0]", "[-1]", "[5]", "['a']", "['zz']", ".a", ".zz", ".0", "[1:]", "[:1]", "[::-1]", "[-1:]", "[:-1]", "[5:1]",
              "[::2]", "[-100:100]", "[none:1]", "[2:0:-1]", "[true]", "[1.0]", "[none]", "['role']", ".role.x"]

SNIPPETS = [
    # expressions and precedence
    "{{ 1 + 2 * 3 }}", "{{ (1 + 2) * 3 }}", "{{ 2 ** 3 ** 2 }}", "{{ -2 ** 2 }}", "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }}",
    "{{ 7.5 // 2 }} {{ -7.5 % 2 }}", "{{ 1 ~ 2 + 3 }}", "{{ 'a' ~ 1 ~ none ~ true ~ 1.0 }}", "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }}",
    "{{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' == 'a' }}", "{{ not true or true }}", "{{ not (true or true) }}", "{{ 0 or 'x' and 'y' }}",
    "{{ 1 if true else 2 }}", "{{ 1 if false }}|", "{{ (1 if false).x }}", "{{ 'a' if 0 else 'b' if 0 else 'c' }}",
    "{{ 3 in [1, 2, 3] and 'b' not in 'abc' }}", "{{ 'role' in messages[0] }}", "{{ not 1 in [2] }}", "{{ 'a' 'b' \"c\" }}",
    "{{ 1, 2 }}", "{{ (1, 'a',) }}", "{{ () }}", "{{ [1, [2, (3,)], {'a': {}}] }}", "{{ {'a': {'b': 1}}.a.b }}", "{{ {'x': 1}['x'] }}",
    "{{ {'a': 1, 'a': 2, 1: 3, true: 4} }}", "{{ -1|abs }}", "{{ 'a'|upper ~ 'b' }}", "{{ 'a' + 'b'|upper }}", "{{ 1.5 + 1 }}", "{{ 4 / 2 }}",
    "{{ 1_000 }} {{ 1e3 }} {{ 1.5e-3 }}", "{{ 9223372036854775807 }}", "{{ +3 }} {{ - 3 }} {{ --3 }}", "{{ 'a' * 3 }}{{ 2 * 'b' }}{{ [1] * 2 }}",
    "{{ [1] + [2] }}{{ (1,) + (2,) }}", "{{ [1, 2] < [1, 3] }} {{ 'a' < 'b' }}", "{{ 'abc'[1] }}{{ 'aäb'[1] }}{{ 'aäb'[-1:] }}{{ '你好吗'[::-1] }}",
    "{{ 'x\\n\\t\\\\\\'\\x41\\u00e9\\U0001F642\\101\\q' }}", "{{ \"it's\" }}", "{{ 'line\nbreak' }}", "{{ 'a\\\nb' }}", "{{ x.y }}", "{{ x }}|{{ x|length }}|{{ x|upper }}",
    "{{ x + 1 }}", "{{ x < 1 }}", "{{ x == y }} {{ x == none }}", "{{ x is defined }} {{ x.y is defined }}", "{{ messages[9].role }}",
    "{{ messages[9] is defined }}", "{{ messages[0].nope is defined }}", "{{ messages[0].nope.deeper }}", "{{ none.x }}|", "{{ none.x.y }}", "{{ 1 / 0 }}", "{{ 1 % 0 }}",
    "{{ 2 ** -1 }}", "{{ 2.0 ** 0.5 }}", "{{ 'a' + 1 }}", "{{ 1 + none }}", "{{ 1 < 'a' }}", "{{ 1 in 'a' }}", "{{ 1 in 1 }}", "{{ [1][none:] }}", "{{ tools[1:] }}", "{{ messages[0][1:] }}",
    "{{ true + true }} {{ true ~ false }} {{ True }} {{ None }} {{ False }}", "{{ 'a'.b }}|",
    "{{ range(3)|list }} {{ range(1, 4)|list }} {{ range(5, 0, -2)|list }} {{ range(0)|list }} {{ range(4)[1] }} {{ range(4)|length }}",
    "{{ range(100001)|length }}", "{{ range(1, 2, 0)|list }}", "{{ dict(a=1, b='x') }} {{ dict({'q': 1}, r=2) }}", "{{ raise_exception('No: ' ~ 1) }}",
    "{{ strftime_now('%d %b %Y') }}", "{{ strftime_now('%A %a %B %m %y %H:%M:%S %I %p %j %-d %-m %%') }}", "{{ strftime_now is defined }} {{ range is callable }}",
    "{{ tools }} {{ tools is none }} {{ documents is defined }}", "{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}", "{{ messages }}", "{{ messages|tojson }}",
    "{{ messages|map(attribute='content')|map('trim')|join('|') }}", "{{ messages|selectattr('role', 'in', ['user', 'x'])|list|length }}", "{{ messages|rejectattr('nope', 'defined')|list|length }}",
    "{{ (messages|first).role }} {{ (messages|last)['content'] }} {{ []|first is defined }} {{ ''|last is defined }}", "{{ []|first }}|", "{{ ([]|first).x }}",
    "{{ 'a,b'.split(',')|join(';') }} {{ ''.split() }} {{ ''.split(',') }}", "{{ 'a'|replace('a', 1) }}", "{{ 'abc'|first }}{{ 'abc'|last }}", "{{ {'a': 1}|first }} {{ {'a': 1, 'b': 2}|last }}", "{{ {'a': 1}|list }} {{ {'a': 1}|length }}",
    "{{ 'b' is in 'abc' }} {{ 1 is not in [1] }}", "{{ 5 is divisibleby(5) and 4 is even }}", "{{ x is defined and x.y }}", "{{ (1 is number) is boolean }}",
    "{{ 'a'|trim|upper|length }}", "{{ [3, 1]|map('string')|join }}", "{{ 'Zażółć gęślą'|upper }} {{ 'ΑΒΓ'|lower }}", "{{ \"don't stop-me now\"|title }} {{ \"don't stop-me now\".title() }}",
    "{{ 'tests'|capitalize }}{{ ''|capitalize }}", "{{ 'a\\r\\nb\\rc'.splitlines() }}", "{{ [1, 2, 3][1:]|tojson }}", "{{ none|tojson }}{{ true|tojson }}{{ 1.5|tojson }}{{ '\\x01\\\"'|tojson }}", "{{ x|tojson }}", "{{ [1,\n 2] }}",
    "{{ 3 is lt 4 }}{{ 3 is greaterthan 4 }}{{ 3 is eq(3) }}", "{{ missing|default('a')|upper }}", "{{ ''|default('a') }}|{{ ''|default('a', true) }}", "{{ messages[0]['content'][0:4] ~ '.' }}",
    "{{ (messages|length > 1) == true }}", "{{ 'x' if messages|length > 100 else 'y' }}", "{{ messages[-1].role != 'user' }}", "{{ {'a': [1, {'b': 'c'}]}|tojson(indent=4) }}", "{{ []|tojson(indent=4) }}{{ {}|tojson(indent=4) }}",
    "{{ [1, 'a', none, true, 2.0] }}", "{{ 1e16 }} {{ 1e15 }} {{ 123456789.123 }} {{ 0.0001 }} {{ 0.00001 }} {{ -0.0 }} {{ 1e300 * 1e10 }}", "{{ 5 and [] or 'end' }}", "{{ namespace(a=1).a }}", "{{ namespace({'a': 2}, b=3)['b'] }}", "{{ namespace().zz is defined }}",
    # statements
    "{% if x %}a{% elif 1 %}b{% else %}c{% endif %}", "{% if x %}a{% elif none %}b{% else %}c{% endif %}", "{% if messages %}m{% endif %}{% if not [] %}e{% endif %}", "{% if 1, 2 %}t{% endif %}",
    "{% for i in [1, 2, 3] %}{{ i }}{% if not loop.last %}, {% endif %}{% endfor %}", "{% for i in [] %}x{% else %}none{% endfor %}", "{% for i in x %}x{% else %}undefined{% endfor %}", "{% for i in none %}{% endfor %}", "{% for i in 3 %}{% endfor %}",
    "{% for i in range(6) if i is odd %}{{ loop.index }}:{{ i }}/{{ loop.length }} {% endfor %}", "{% for i in [1, 2] if i > 5 %}x{% else %}empty{% endfor %}", "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in {'a': 1}|items %}{{ k }}{{ v }}{% endfor %}", "{% for k in {'a': 1, 'b': 2} %}{{ k }}{% endfor %}", "{% for c in 'aäb' %}[{{ c }}]{% endfor %}",
    "{% for a, b in [(1, 2), [3, 4]] %}{{ a + b }} {% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for i in 1, 2 %}{{ i }}{% endfor %}",
    "{% for i in 'abc' %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}|{% endfor %}", "{% for i in 'abc' %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}", "{% for i in 'ab' %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}", "{% for i in range(5) %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for i in 'ab' %}{% for j in 'xyz' %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}", "{% for i in 'ab' %}{% for j in [] %}{% else %}{{ loop.index }}{% endfor %}{% endfor %}", "{{ loop.index }}",
    "{% for i in range(9) %}{% if i == 5 %}{% break %}{% endif %}{% if i is even %}{% continue %}{% endif %}{{ i }}{% endfor %}", "{% for i in [1] %}{% break %}{% else %}x{% endfor %}", "{% for i in 'ab' %}{% if loop.last %}{% continue %}{% endif %}{% else %}x{% endfor %}", "{% for i in 'ab' %}{% for j in 'xy' %}{% break %}{% endfor %}{{ i }}{% endfor %}",
    "{% set a = 1 %}{{ a }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set a %}x{{ 1 }}{% endset %}[{{ a }}]", "{% set a = 1 %}{% set a = a + 1 %}{{ a }}", "{% set a %}{% set b = 2 %}{% endset %}{{ b is defined }}",
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}", "{% for i in [1, 2] %}{% if i == 1 %}{% set x = 5 %}{% endif %}{{ x }}|{% endfor %}", "{% if true %}{% set x = 5 %}{% endif %}{{ x }}", "{% if false %}{% set messages = 5 %}{% endif %}{{ messages|length }}", "{% for m in messages %}{% set messages = [] %}{{ messages|length }}{% endfor %}{{ messages|length }}",
    "{% set ns = namespace(n=0) %}{% for i in [1, 2, 3] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "{% set ns = namespace() %}{% set ns.x = 'a' %}{% set ns.y %}b{% endset %}{{ ns.x ~ ns.y }}", "{% set ns.x = 1 %}", "{% set d = {} %}{% set d.x = 1 %}", "{% set ns = namespace(a=namespace(b=1)) %}{{ ns.a.b }}", "{% set ns = namespace() %}{% set ns.self = ns %}{{ ns.self.self is defined }}",
    "{% set bos_token = 'B' %}{{ bos_token }}", "{% set tools = [{'name': 'f', 'parameters': {'x': [1, 2.5, true, none]}}] %}{% for t in tools %}{{ t|tojson(indent=4) }}{% endfor %}", "{% for t in tools %}{% endfor %}", "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{% endfor %}", "{% for m in messages %}{{ m.role }}{% set role = m.role %}{% endfor %}{{ role is defined }}",
    "{% with %}{% set a = 1 %}{{ a }}{% endwith %}{{ a is defined }}", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}", "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% generation %}{% set g = 1 %}{{ g }}{% endgeneration %}{{ g is defined }}", "{% for i in 'ab' %}{% generation %}{{ loop.index }}{{ i }}{% endgeneration %}{% endfor %}",
    "{% set r = messages|selectattr('role', 'equalto', 'user') %}{% for m in r %}{{ m.role }}{% endfor %}", "{% print 1 + 1 %}", "{% if true: %}x{% endif %}", "{% for i in [1]: %}x{% endfor %}", "{% for i in 'ab' %}{% set s %}{{ i }}{% continue %}{% endset %}{% endfor %}ok", "{% for m in messages[1:] %}{{ m.role }}{% endfor %}", "{% for m in messages|reverse %}{{ m.role }} {% endfor %}", "{% for i in (1, 2) if i == 1 or true %}{{ i }}{% endfor %}",
    # syntax errors
    "{{", "{{ 1", "{% if 1 %}", "{% endif %}", "{% else %}", "{{ }}", "{{ 1 + }}", "{{ (1 }}", "{{ 1) }}", "{{ [1 }}", "{{ 'a }}", "{# never closed", "{% for %}", "{% for x %}{% endfor %}", "{% for x in %}{% endfor %}", "{% set %}", "{% set 1 = 2 %}", "{% set x = %}", "{% if %}{% endif %}", "{{ 1 2 }}", "{{ a b }}", "{{ {1} }}", "{{ $ }}", "{{ a ! b }}", "{{ a; }}",
    "{% if 1 %}{% endfor %}", "{% for a in [1] %}{% endif %}", "{{ 1 is }}", "{{ 1 | }}", "{{ a. }}", "{{ a[ }}", "{% %}", "{% break %}", "{% set none = 1 %}", "{% set true = 1 %}", "{{ dict(a=1, 2) }}", "{% if 1 %}{% else %}{% else %}{% endif %}", "{{ 1 is none is none }}", "{% for x in [1] recursive if x %}{% endfor %}", "{{ not }}", "{{ * }}", "{{ 1 if }}", "{% endset %}", "{% set x %}", "}}", "%}", "#}", "{ {", "{}", "{", "a{", "{{'}}'}}", "{{ '%}' }}", "{% if '%}' %}x{% endif %}", "{{ {'a': '}}'}['a'] }}",
    # source forms
    "a\r\nb\rc\n", "a\n\n", "\n", "", "{# c #}\nx", "a {# c #} b", "  {#- c -#}  x", "a\n  {# c #}\nb", "x{# {{ 1 }} {% if %} #}y", "{#-#}x", "{#+#}\nx", "{# a\nb #}{{ x.y }}", "{{ 1 }}\n{{ 2 }}\n", "{{ 1 -}}\n\n {{- 2 }}", "a\u00a0\u2003{%- if 1 -%}\u3000b{% endif %}", "a\x1c{%- if 1 -%}\x1fb{% endif %}", "{%- if 1 -%} a {%- endif -%} ", "{{-1}}", "{{- 1 -}}", "{{1-}}", "{%if 1%}a{%endif%}", "{%+ if 1 +%}\n a{%+ endif +%}\n", "{% if 1 %}\n\n  {% if 1 %}\n x\n  {% endif %}\n{% endif %}\n", "\t {% set a = 1 %}\t\nx", "x  {% set a = 1 %}  \ny", "{% set a = 1 %}  {% set b = 2 %}\nz", "{{ 1 }}  {% set b = 2 %}\nz", "{% set a = 1 %}\n  {% set b = 2 %}\n  z", "{% set a = 'x\ny' %}\n  {% set b = 2 %}  {{ a }}", "{#x#}  {% set b = 2 %}y", "{#x-#}  \n  {% set b = 2 %}y", "\r\n  {% set a = 1 %}\r\nx\r\n",
]


def small_templates():
    """Yields (name, template) for all combinations."""
    for i, snippet in enumerate(SNIPPETS):
        yield f"snippet {i}", snippet
    edges = ["", "a", " ", "a ", "\n", "a\n", "\n ", "a \n  "]
    for kind, left, right, before, after in itertools.product("{%#", ["", "-", "+"], ["", "-", "+"], edges, edges):
        if kind == "{" and "+" in right:
            continue
        begin, inside, end = {"{": ("{{", " 1 ", "}}"), "%": ("{%", " set x = 1 ", "%}"), "#": ("{#", " c ", "#}")}[kind]
        yield f"space {kind}{left}{right}", before + begin + left + inside + right + end + after + "|"
    for left, op, right in itertools.product(VALUES, OPERATORS, VALUES):
        if op == "%" and left.startswith("'"):
            continue  # string formatting, which our interpreter rejects
        yield "operator", "{{ (%s) %s %s }}" % (left, op, right)
    for value in VALUES + MORE_VALUES:
        for name in FILTERS:
            yield "filter", "{{ (%s)|%s }}" % (value, name)
        for name in TESTS:
            yield "test", "{{ (%s) is %s }}" % (value, name)
        for name in METHODS:
            yield "method", "{{ (%s).%s }}" % (value, name)
        for name in SUBSCRIPTS:  # on a variable, because Jinja folds constants with other rules for slices
            yield "subscript", "{%% set v = %s %%}{{ v%s }}" % (value, name)
        yield "print", "{{ %s }}{{ [%s] }}{{ 1 if %s else 0 }}{{ not %s }}" % (value, value, value, value)
        yield "loop", "{%% for x in %s %%}{{ x }},{%% else %%}empty{%% endfor %%}" % value


class StoppedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def render(template, given):
    try:
        text = chat_template_utils.render_jinja_template(
            conversations=[given["messages"]], chat_template=template, add_generation_prompt=given["add_generation_prompt"],
            bos_token=given["bos_token"], eos_token=given["eos_token"], **given["variables"])[0][0]
        return "text", text
    except jinja2.exceptions.UndefinedError as error:
        return "undefined", error.message
    except Exception as error:
        if type(error) is jinja2.exceptions.TemplateError:
            return "raised", error.message
        return "error", ""


# True for features of Python that our interpreter rejects (listed in docs/chat-templates.md), recognised by rendering or template.
def unsupported_here(template, outcome, text):
    if outcome != "text":
        return False
    marks = ["<generator object", "dict_", "range(0", "<built-in", "<bound method", "<Namespace", "<function", "ẞ", "<list_reverseiterator"]
    complex_number = text.endswith("j)") and "**" in template
    long_integer = text.isdigit() and int(text) >= 2**63
    return complex_number or long_integer or any(mark in text for mark in marks)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, metavar="FILE")
    out = parser.parse_args().out
    chat_template_utils.datetime = StoppedClock

    inputs, cases, left_out = [], [], []
    templates = [template for _, template, _ in MODELS]

    def add(name, template, given, index):
        outcome, text = render(template, given)
        if unsupported_here(template, outcome, text):
            left_out.append((template, text))
        else:
            where = templates.index(template) if template in templates else template
            cases.append([name, where, index, outcome, text])

    base = {"messages": CONVERSATIONS["system-turns"], "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True,
            "variables": {}}
    inputs.append(base)
    for name, template in small_templates():
        add(name, template, base, 0)

    extras = [{}, {"date_string": "01 Jan 2025", "enable_thinking": False, "tools_in_user_message": False}]
    for (key, tokens), (chat, messages), prompt, extra in itertools.product(
            TOKENS.items(), CONVERSATIONS.items(), [False, True], extras):
        given = {"messages": messages, "bos_token": tokens[0], "eos_token": tokens[1], "add_generation_prompt": prompt,
                 "variables": extra}
        inputs.append(given)
        for name, template, token_key in MODELS:
            if token_key == key:
                add(f"{name} {chat}", template, given, len(inputs) - 1)

    kinds = {}
    for case in cases:
        kinds[case[3]] = kinds.get(case[3], 0) + 1
    print(len(cases), "cases", kinds)
    for template, text in left_out:
        print("  left out:", template, "->", text)
    with open(out, "w", encoding="utf-8") as file:
        file.write('{"templates": [\n')
        file.write(",\n".join(json.dumps(template) for template in templates))
        file.write('\n], "inputs": [\n')
        file.write(",\n".join(json.dumps(given, ensure_ascii=True) for given in inputs))
        file.write('\n], "cases": [\n')
        file.write(",\n".join(json.dumps(case, ensure_ascii=True) for case in cases))
        file.write("\n]}\n")


if __name__ == "__main__":
    main()
