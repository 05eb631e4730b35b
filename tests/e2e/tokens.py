"""tokid counts tokens as llama-server does, whatever the text: else it would promise what is not
there.
"""

import json

import harness
from harness import post, words

harness.require_parts()

ODD_TEXTS = {
    "plain": "the cat read a story",
    "empty": "",
    "one space": " ",
    "spaces": "      ",
    "leading and trailing space": "  the cat  ",
    "newlines": "\n\n\n",
    "carriage returns": "the\r\ncat\rread",
    "tabs": "\t\tthe\tcat",
    "special tokens in the text": "the <|im_end|> cat <|im_start|>system\nread<|im_end|> it",
    "begin and end of text": "<s>the</s> cat <unk>",
    "half a special token": "the <|im_end| cat <|im_",
    "fill-in-the-middle tokens": "<|fim_prefix|>the<|fim_suffix|>cat<|fim_middle|>",
    "byte token names": "<0x0A><0x41> the",
    "the visible space itself": "the\u2581cat \u2581 read",
    "tool tags": '<tool_call>{"name": "x"}</tool_call>',
    "letters with marks": "\u00e4\u00f6\u00fc\u00df\u00e9\u00e8\u00f1",
    "composed and decomposed": "\u00e9 e\u0301 \ufb01 fi",
    "other scripts": "\u4f60\u597d\u4e16\u754c \u043f\u0440\u0438\u0432\u0435\u0442 "
    "\u05e9\u05dc\u05d5\u05dd \u3053\u3093",
    "emoji sequences": "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U0001f642",
    "zero width and direction marks": "a\u200bb\u202ec\ufeffd",
    "control characters": "a\u0001b\u001f\u007fc",
    "noncharacters": "a\uffffb\U0010ffffc",
    "template syntax": "{{ messages[0].content }} {% for x in y %} {# no #}",
    "json in text": json.dumps({"a": [1, None, {"b": '"\\'}]}),
    "escapes": "\\n \\u0041 \\\\ \" ' / \b \f",
    "digits": "0123456789 3.14159 1e-9 0x7f",
    "punctuation": "!?.,;:()[]{}<>|/\\~^$%&*+-_=@#`'\"",
    "a long word": "a" * 700,
    "upper case": "THE CAT READ A STORY",
}


class Tokens(harness.StandardCase):
    slots = 2

    def repeat(self, path, body, what):
        """Sends a request twice; the second must be predicted exactly as far as the server then
        reuses.
        """
        url = self.tokid.url + path
        first = post(url, body)
        if first.status != 200:
            direct = post(self.llama.url + path, body)
            self.assertEqual(first.status, direct.status, f"{what}: {first.body!r}")
            return
        second = post(url, body)
        self.assertEqual(second.status, 200, f"{what}: {second.body!r}")
        timings = second.json()["timings"]
        predicted, cache_n = int(second.headers["x-toki-reused"]), timings["cache_n"]
        told = f"{what}: predicted {predicted}, {timings}, {second.headers.get('x-toki-reason')}"
        self.assertLessEqual(predicted, cache_n, told)
        self.assertEqual(second.headers["x-toki-slot"], first.headers["x-toki-slot"], told)
        self.assertEqual(predicted, cache_n + timings["prompt_n"] - 1, told)

    def check_counts(self):
        stats = self.tokid.settled_stats()
        self.assertEqual(stats["tokenization_mismatch_total"], 0)
        self.assertEqual(stats["integrity_faults_total"], 0)

    def test_odd_texts_in_completions(self):
        for name, text in ODD_TEXTS.items():
            with self.subTest(name):
                self.repeat("/completion", {"prompt": text, "n_predict": 2, "temperature": 0}, name)
                self.repeat(
                    "/v1/completions",
                    {"model": "m", "prompt": text, "max_tokens": 2, "temperature": 0},
                    name,
                )
        self.check_counts()

    def test_odd_texts_in_chats(self):
        for name, text in ODD_TEXTS.items():
            with self.subTest(name):
                self.repeat(
                    "/v1/chat/completions",
                    {
                        "model": "m",
                        "max_tokens": 2,
                        "temperature": 0,
                        "messages": [
                            {"role": "system", "content": text},
                            {"role": "user", "content": text},
                        ],
                    },
                    name,
                )
        self.check_counts()

    def test_everything_that_changes_how_a_chat_is_rendered(self):
        system, user = {"role": "system", "content": words(30, "s")}, {
            "role": "user",
            "content": words(10, "u"),
        }
        tools = [
            {
                "type": "function",
                "function": {
                    "name": "read_file",
                    "description": "Reads a file",
                    "parameters": {
                        "type": "object",
                        "properties": {"zebra": {"type": "string"}, "apple": {"type": "number"}},
                        "required": ["zebra"],
                    },
                },
            }
        ]
        tool_call = {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "read_file", "arguments": '{"zebra":"x"}'},
                }
            ],
        }
        cases = {
            "no system message": {"messages": [user]},
            "content in parts": {
                "messages": [
                    system,
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "the cat"},
                            {"type": "text", "text": "and the river"},
                        ],
                    },
                ]
            },
            "an assistant turn": {
                "messages": [system, user, {"role": "assistant", "content": "yes"}, user]
            },
            "a started answer": {
                "messages": [system, user, {"role": "assistant", "content": "The answer"}]
            },
            "tools": {"messages": [system, user], "tools": tools},
            "tools, none wanted": {
                "messages": [system, user],
                "tools": tools,
                "tool_choice": "none",
            },
            "tools, one required": {
                "messages": [system, user],
                "tools": tools,
                "tool_choice": "required",
            },
            "a tool's result": {
                "messages": [
                    system,
                    user,
                    tool_call,
                    {"role": "tool", "tool_call_id": "c1", "content": "contents"},
                ],
                "tools": tools,
            },
            "a json schema": {
                "messages": [system, user],
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "s",
                        "schema": {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}},
                    },
                },
            },
            "a json object": {
                "messages": [system, user],
                "response_format": {"type": "json_object"},
            },
            "template arguments": {
                "messages": [system, user],
                "chat_template_kwargs": {"enable_thinking": False},
            },
            "no generation prompt": {"messages": [system, user], "add_generation_prompt": False},
            "names": {"messages": [system, {**user, "name": "alice"}]},
            "a second system message": {
                "messages": [system, user, {"role": "system", "content": "be brief"}]
            },
            "unknown fields": {
                "messages": [system, user],
                "x_future": {"a": [1, None]},
                "reasoning_effort": "low",
            },
        }
        for name, body in cases.items():
            with self.subTest(name):
                self.repeat(
                    "/v1/chat/completions",
                    {"model": "m", "max_tokens": 2, "temperature": 0, **body},
                    name,
                )
        self.check_counts()

    def test_of_a_growing_conversation_only_the_new_part_is_tokenized(self):
        before = self.tokid.settled_stats()
        messages = [{"role": "system", "content": words(600, "system")}]
        known = 0
        for turn in range(6):
            messages.append({"role": "user", "content": words(20, f"question {turn}")})
            answer = self.chat(messages, max_tokens=8).ok()
            prompt = answer["usage"]["prompt_tokens"]
            stats = self.tokid.settled_stats()
            saved = stats["token_cache_tokens_total"] - before["token_cache_tokens_total"]
            if turn > 0:
                # All of the prompt before, but for the opening of its answer.
                self.assertGreaterEqual(saved, known - 16, f"turn {turn}")
                self.assertEqual(
                    stats["token_cache_part_total"] - before["token_cache_part_total"], 1
                )
            before, known = stats, prompt
            messages.append({"role": "assistant", "content": words(10, f"answer {turn}")})
        # A changed system prompt shares nothing.
        messages[0] = {"role": "system", "content": "The " + messages[0]["content"]}
        self.chat(messages[:-1], max_tokens=1).ok()
        stats = self.tokid.settled_stats()
        saved = stats["token_cache_tokens_total"] - before["token_cache_tokens_total"]
        self.assertLess(saved, 8)
        self.assertEqual(stats["token_cache_off"], 0)
        self.check_counts()

    def test_texts_with_special_tokens_in_them_are_cut_exactly(self):
        # Each prompt begins like the one before and goes on with another odd text.
        prompt = words(50, "start")
        for name, text in ODD_TEXTS.items():
            prompt += f"<|im_start|>{text}<|im_end|>"
            with self.subTest(name):
                answer = post(
                    self.tokid.url + "/v1/completions",
                    {"model": "m", "prompt": prompt, "max_tokens": 1, "temperature": 0},
                ).ok()
                body = {"content": prompt, "add_special": True, "parse_special": True}
                tokens = post(self.llama.url + "/tokenize", body).ok()["tokens"]
                self.assertEqual(answer["usage"]["prompt_tokens"], len(tokens))
        self.assertGreater(self.tokid.settled_stats()["token_cache_part_total"], 10)
        self.check_counts()

    def test_a_lone_surrogate_is_left_to_the_server(self):
        body = b'{"prompt":"a \\ud83d b","n_predict":1}'
        through, direct = post(self.tokid.url + "/completion", body), post(
            self.llama.url + "/completion", body
        )
        self.assertEqual(through.status, direct.status, through.body)
        self.check_counts()


if __name__ == "__main__":
    harness.main()
