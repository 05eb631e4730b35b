"""The official openai client for Python works through tokid as it does with llama-server itself."""

import json
import threading

import harness
from harness import words

harness.require_parts()
harness.require_client("openai")

import openai

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
                "required": ["city"],
            },
        },
    }
]


def client_of(tokid):
    return openai.OpenAI(
        base_url=tokid.url + "/v1",
        api_key="sk-no-secret-but-as-long-as-real-ones-are",
        max_retries=0,
        timeout=120,
    )


class Client(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.llama = cls.start_llama(slots=4, context=16384)
        cls.tokid = cls.start_tokid(backend=cls.llama.url)
        cls.client = client_of(cls.tokid)
        cls.messages = [
            {"role": "system", "content": words(120, "client")},
            {"role": "user", "content": "hello"},
        ]
        # The random model never calls a tool by itself: a bias makes it open one call after the
        # other, and the grammar that the server derives from `tools` makes each a whole one. The
        # last may be cut short.
        opening = harness.post(
            cls.llama.url + "/tokenize", {"content": "<tool_call>", "parse_special": True}
        )
        cls.force_a_call = {
            "logit_bias": {str(opening.ok()["tokens"][0]): 100},
            "max_tokens": 250,
            "tool_choice": "required",
        }

    def chat(self, **more):
        return self.client.chat.completions.create(
            **{"model": "m", "messages": self.messages, "max_tokens": 16, "temperature": 0, **more}
        )

    def test_chat(self):
        first = self.chat()
        self.assertTrue(first.choices[0].message.content)
        raw = self.client.chat.completions.with_raw_response.create(
            model="m", messages=self.messages, max_tokens=16, temperature=0
        )
        self.assertEqual(raw.headers["x-toki-cache"], "hit")
        again = raw.parse()
        self.assertEqual(again.choices[0].message.content, first.choices[0].message.content)
        self.assertEqual(
            again.usage.prompt_tokens_details.cached_tokens, again.usage.prompt_tokens - 1
        )

    def test_streamed_chat(self):
        whole = self.chat().choices[0].message.content
        text, usage = "", None
        for chunk in self.chat(stream=True, stream_options={"include_usage": True}):
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
            usage = chunk.usage or usage
        self.assertEqual(text, whole)
        self.assertGreater(usage.prompt_tokens_details.cached_tokens, 0)

    def test_completions(self):
        whole = self.client.completions.create(
            model="m", prompt=words(60, "c"), max_tokens=12, temperature=0
        )
        stream = self.client.completions.create(
            model="m", prompt=words(60, "c"), max_tokens=12, temperature=0, stream=True
        )
        text = "".join(chunk.choices[0].text for chunk in stream if chunk.choices)
        self.assertEqual(text, whole.choices[0].text)
        self.assertTrue(text)

    def test_tools_are_part_of_the_prompt(self):
        plain, with_tools = self.chat(), self.chat(tools=TOOLS)
        self.assertGreater(with_tools.usage.prompt_tokens, plain.usage.prompt_tokens + 50)
        again = self.chat(tools=TOOLS)
        self.assertEqual(
            again.usage.prompt_tokens_details.cached_tokens, again.usage.prompt_tokens - 1
        )

    def check_call(self, name, arguments):
        self.assertEqual(name, "get_weather")
        self.assertIn(json.loads(arguments)["city"], ("Paris", "Rome"))

    def test_tool_calls_and_the_turn_after_them(self):
        asked = self.chat(tools=TOOLS, **self.force_a_call)
        message = asked.choices[0].message
        self.check_call(
            message.tool_calls[0].function.name, message.tool_calls[0].function.arguments
        )
        message.tool_calls = message.tool_calls[:1]
        answered = self.chat(
            tools=TOOLS,
            messages=[
                *self.messages,
                message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"},
            ],
        )
        self.assertGreaterEqual(
            answered.usage.prompt_tokens_details.cached_tokens, 0.97 * asked.usage.prompt_tokens
        )

    def test_streamed_tool_calls(self):
        name, arguments = "", ""
        for chunk in self.chat(tools=TOOLS, **self.force_a_call, stream=True):
            for part in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
                if part.index == 0:
                    name += part.function.name or ""
                    arguments += part.function.arguments or ""
        self.check_call(name, arguments)

    def test_two_answers(self):
        answer = self.chat(n=2, temperature=1)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1])
        seen = {
            chunk.choices[0].index
            for chunk in self.chat(n=2, temperature=1, stream=True)
            if chunk.choices
        }
        self.assertEqual(seen, {0, 1})

    def test_stop_strings(self):
        messages = [{"role": "user", "content": words(40, "stop")}]
        whole = (
            self.chat(messages=messages, max_tokens=24, extra_body={"ignore_eos": True})
            .choices[0]
            .message.content
        )
        stop = whole.split()[3]
        stopped = self.chat(
            messages=messages, max_tokens=24, stop=[stop], extra_body={"ignore_eos": True}
        )
        self.assertEqual(
            stopped.choices[0].message.content,
            whole[: whole.index(stop)],
            f"stop at {stop!r}, whole {whole!r}",
        )
        self.assertEqual(stopped.choices[0].finish_reason, "stop")

    def test_a_cancelled_stream_frees_its_slot_within_a_second(self):
        stream = self.chat(stream=True, max_tokens=16000, extra_body={"ignore_eos": True})
        next(iter(stream))
        self.assertFalse(
            self.llama.idle(), "the generation has ended too early: this test proves nothing"
        )
        stream.close()
        self.llama.wait_idle(limit_s=1)
        self.tokid.stats_when(lambda s: s["slots_busy"] == 0, "tokid's slot is free")
        self.assertTrue(self.chat().choices[0].message.content)

    def test_responses(self):
        ask = dict(
            model="m",
            instructions=words(80, "r"),
            input="hello there",
            max_output_tokens=12,
            temperature=0,
        )
        first, again = self.client.responses.create(**ask), self.client.responses.create(**ask)
        self.assertTrue(first.output_text)
        self.assertEqual(again.output_text, first.output_text)
        self.assertGreaterEqual(again.usage.input_tokens_details.cached_tokens, 80)
        kinds, text = [], ""
        for event in self.client.responses.create(**ask, stream=True):
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
        self.assertEqual((kinds[0], kinds[-1]), ("response.created", "response.completed"))
        self.assertEqual(text, first.output_text)

    def test_models(self):
        self.assertTrue(self.client.models.list().data[0].id)

    def test_many_at_once(self):
        answers = harness.in_parallel(
            [
                lambda n=n: self.chat(
                    messages=[{"role": "user", "content": words(30, f"many {n}")}]
                )
                for n in range(16)
            ]
        )
        self.assertEqual(len(answers), 16)
        self.assertTrue(all(answer.usage.completion_tokens for answer in answers))

    def test_errors_are_the_clients_own_exceptions(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(messages=[{"role": "user", "content": words(20000, "long")}])
        self.assertEqual(caught.exception.body["type"], "exceed_context_size_error")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(extra_body={"id_slot": 99})
        self.assertEqual(caught.exception.body["type"], "invalid_request_error")
        with self.assertRaises(openai.BadRequestError):
            self.chat(messages=[{"role": "user", "content": words(20000, "long")}], stream=True)
        with self.assertRaises(openai.NotFoundError):
            self.client.files.list()

    def test_tokid_counts_as_the_server_does(self):
        self.chat()
        stats = self.tokid.settled_stats()
        self.assertEqual(
            (stats["tokenization_mismatch_total"], stats["integrity_faults_total"]), (0, 0)
        )


class Limits(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.llama = cls.start_llama(slots=1, context=16384)
        cls.tokid = cls.start_tokid(
            backend=cls.llama.url,
            options=["--queue-length", "1", "--queue-wait-ms", "60000", "--max-body-mib", "1"],
        )
        cls.client = client_of(cls.tokid)

    def test_a_full_queue_is_a_rate_limit_error_and_the_waiting_request_is_served(self):
        long = self.client.completions.create(
            model="m", prompt="the", max_tokens=16000, stream=True, extra_body={"ignore_eos": True}
        )
        self.addCleanup(long.close)
        next(iter(long))
        waiting = []
        thread = threading.Thread(
            daemon=True,
            target=lambda: waiting.append(
                self.client.completions.create(model="m", prompt="cat", max_tokens=2)
            ),
        )
        thread.start()
        self.tokid.stats_when(lambda s: s["queue_length"] == 1, "the second request waits")
        with self.assertRaises(openai.RateLimitError) as caught:
            self.client.completions.create(model="m", prompt="dog", max_tokens=2)
        self.assertGreater(int(caught.exception.response.headers["retry-after"]), 0)
        long.close()
        thread.join(60)
        self.assertEqual(len(waiting), 1, "the waiting request was never answered")

    def test_too_big_a_body_is_a_status_error(self):
        with self.assertRaises(openai.APIStatusError) as caught:
            self.client.completions.create(model="m", prompt="x" * (2 << 20), max_tokens=1)
        self.assertEqual(caught.exception.status_code, 413)

    def test_a_dead_server_is_an_internal_server_error_and_the_next_request_works(self):
        self.llama.kill()
        with self.assertRaises(openai.InternalServerError) as caught:
            self.client.completions.create(model="m", prompt="the", max_tokens=1)
        self.assertIn(caught.exception.status_code, (502, 503))
        self.llama.start()
        self.tokid.wait_ready()
        self.client.completions.create(model="m", prompt="the", max_tokens=1)


if __name__ == "__main__":
    harness.main()
