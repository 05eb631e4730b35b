"""The other generation calls: infill, the responses API, prompts as token ids, several prompts,
stop strings, slots.
"""

import json

import harness
from harness import post, words

harness.require_parts()


class Shapes(harness.StandardCase):
    def send(self, path, body):
        answer = post(self.tokid.url + path, body)
        return answer.ok(), answer.headers

    def ids(self, text):
        return post(self.llama.url + "/tokenize", {"content": text, "add_special": True}).ok()[
            "tokens"
        ]

    def check_repeat(self, path, body, cached, tokens):
        """The same request again reuses all but what must always be computed. `cached`, `tokens`:
        from the answer.
        """
        first, _ = self.send(path, body)
        second, headers = self.send(path, body)
        self.assertGreaterEqual(cached(second), 0.97 * tokens(second) - 1, (first, second, headers))
        return second, headers

    def test_infill_reuses_the_code_before_the_cursor(self):
        body = {
            "input_prefix": words(150, "before"),
            "input_suffix": words(40, "after"),
            "prompt": "the ",
            "input_extra": [{"filename": "a.txt", "text": words(30, "extra")}],
            "n_predict": 8,
            "temperature": 0,
        }
        timings = lambda answer: answer["timings"]
        second, headers = self.check_repeat(
            "/infill",
            body,
            lambda a: timings(a)["cache_n"],
            lambda a: timings(a)["cache_n"] + timings(a)["prompt_n"],
        )
        self.assertIn("x-toki-cache", headers)
        self.assertLessEqual(int(headers["x-toki-reused"]), timings(second)["cache_n"])
        text, _, last, _ = harness.stream_text(self.tokid.url + "/infill", body)
        self.assertEqual(text, second["content"])
        self.assertGreater(last["cache_n"], 100)

    def test_responses_reuse_what_was_sent_before(self):
        usage = lambda answer: answer["usage"]
        for number, input_ in enumerate(
            (
                words(120, "responses"),
                [
                    {"role": "user", "content": words(100, "first")},
                    {
                        "type": "message",
                        "role": "assistant",
                        "content": [{"type": "output_text", "text": "yes"}],
                    },
                    {"role": "user", "content": [{"type": "input_text", "text": "and then"}]},
                ],
            )
        ):
            body = {
                "model": "m",
                "input": input_,
                "instructions": words(60, "instructions"),
                "temperature": 0,
                "max_output_tokens": 8,
            }
            with self.subTest(number):
                second, headers = self.check_repeat(
                    "/v1/responses",
                    body,
                    lambda a: usage(a)["input_tokens_details"]["cached_tokens"],
                    lambda a: usage(a)["input_tokens"],
                )
                self.assertEqual(second["status"], "completed")
                self.assertLessEqual(
                    int(headers["x-toki-reused"]),
                    usage(second)["input_tokens_details"]["cached_tokens"],
                )

    def test_a_streamed_response_ends_with_its_usage(self):
        body = {
            "model": "m",
            "input": words(80, "streamed"),
            "temperature": 0,
            "max_output_tokens": 8,
            "stream": True,
        }
        for expected in (0, 60):
            with harness.Stream(self.tokid.url + "/v1/responses", body) as stream:
                self.assertEqual(stream.status, 200)
                events = [json.loads(data) for data in stream.events() if data != "[DONE]"]
            self.assertEqual(events[0]["type"], "response.created")
            self.assertEqual(events[-1]["type"], "response.completed")
            self.assertGreaterEqual(
                events[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"], expected
            )

    def test_prompts_of_token_ids_reuse_exactly_what_they_share(self):
        base = self.ids(words(200, "ids"))
        for path, limit in (("/v1/completions", "max_tokens"), ("/completion", "n_predict")):
            with self.subTest(path):
                body = {"model": "m", limit: 1, "temperature": 0}
                self.send(path, {**body, "prompt": base})
                longer, headers = self.send(
                    path, {**body, "prompt": base + self.ids(words(20, path))[1:]}
                )
                self.assertGreaterEqual(longer["timings"]["cache_n"], len(base))
                self.assertGreaterEqual(int(headers["x-toki-reused"]), len(base))
                self.assertEqual(headers["x-toki-cache"], "hit")

    def test_a_text_and_its_ids_are_the_same_prompt(self):
        text = words(90, "same")
        self.send("/completion", {"prompt": text, "n_predict": 1, "temperature": 0})
        answer, headers = self.send(
            "/completion", {"prompt": self.ids(text), "n_predict": 1, "temperature": 0}
        )
        self.assertEqual(answer["timings"]["prompt_n"], 1)
        self.assertEqual(int(headers["x-toki-reused"]), answer["timings"]["cache_n"])

    def test_a_prompt_that_mixes_text_and_ids_works(self):
        answer, _ = self.send("/completion", {"prompt": [1, 300, " the cat ", 301], "n_predict": 2})
        self.assertIn("content", answer)

    def test_several_prompts_in_one_call_are_left_to_the_server(self):
        answer, headers = self.send(
            "/v1/completions",
            {
                "model": "m",
                "prompt": [words(40, "a"), words(40, "b")],
                "max_tokens": 4,
                "temperature": 0,
            },
        )
        self.assertEqual(len(answer["choices"]), 2)
        self.assertEqual((headers["x-toki-cache"], headers["x-toki-slot"]), ("bypass", "any"))
        self.assertEqual(headers["x-toki-reason"], "several_answers")

    def test_several_answers_to_one_chat_are_left_to_the_server(self):
        answer, headers = self.send(
            "/v1/chat/completions",
            {
                "model": "m",
                "messages": [{"role": "user", "content": words(40, "n")}],
                "n": 2,
                "max_tokens": 4,
            },
        )
        self.assertEqual(len(answer["choices"]), 2)
        self.assertEqual(
            (headers["x-toki-slot"], headers["x-toki-reason"]), ("any", "several_answers")
        )

    def test_a_chat_after_several_answers_is_never_promised_what_is_gone(self):
        messages = [
            {"role": "system", "content": words(100, "after n")},
            {"role": "user", "content": "go"},
        ]
        for more in ({}, {"n": 2}, {}, {"n": 4}, {}):
            answer, headers = self.send(
                "/v1/chat/completions",
                {"model": "m", "messages": messages, "max_tokens": 4, "temperature": 0, **more},
            )
            if not more:
                self.assertLessEqual(int(headers["x-toki-reused"]), answer["timings"]["cache_n"])
        self.assertEqual(self.tokid.settled_stats()["integrity_faults_total"], 0)

    def test_a_stop_string_ends_the_answer(self):
        body = {"prompt": words(60, "stop"), "n_predict": 24, "temperature": 0, "ignore_eos": True}
        whole = self.send("/completion", body)[0]["content"]
        stop = whole.split()[4]
        stopped, _ = self.send("/completion", {**body, "stop": [stop]})
        self.assertEqual(stopped["stop_type"], "word")
        self.assertEqual(stopped["content"], whole[: whole.index(stop)])

    def test_a_request_without_cache_prompt_computes_everything_and_breaks_no_later_promise(self):
        body = {"prompt": words(80, "uncached"), "n_predict": 4, "temperature": 0}
        self.send("/completion", body)
        cold, headers = self.send("/completion", {**body, "cache_prompt": False})
        self.assertEqual(cold["timings"]["cache_n"], 0)
        self.assertEqual(
            (headers["x-toki-cache"], headers["x-toki-reason"]), ("bypass", "cache_prompt_false")
        )
        again, headers = self.send("/completion", body)
        self.assertLessEqual(int(headers["x-toki-reused"]), again["timings"]["cache_n"])

    def test_a_slot_that_the_client_names_is_used(self):
        for slot in (2, 0, 3):
            answer, headers = self.send(
                "/completion",
                {"prompt": words(30, f"slot {slot}"), "n_predict": 1, "id_slot": slot},
            )
            self.assertEqual(answer["id_slot"], slot)
            self.assertEqual(
                (headers["x-toki-slot"], headers["x-toki-reason"]), (str(slot), "requested_slot")
            )
        for slot in (4, -2, "1", 1.5):
            with self.subTest(slot=slot):
                refused = post(self.tokid.url + "/completion", {"prompt": "x", "id_slot": slot})
                self.assertEqual(refused.status, 400, refused.body)
                self.assertEqual(refused.json()["error"]["type"], "invalid_request_error")

    def test_the_anthropic_call_passes_through(self):
        body = {
            "model": "m",
            "max_tokens": 4,
            "messages": [{"role": "user", "content": words(30, "anthropic")}],
        }
        answer, _ = self.send("/v1/messages", body)
        self.assertEqual(answer["type"], "message")
        self.assertGreater(answer["usage"]["output_tokens"], 0)


class SideRequests(harness.TestCase):
    """Chats with small side requests between their turns, as front ends send them."""

    def test_titles_do_not_displace_long_chats(self):
        llama = self.start_llama(slots=3)
        tokid = self.start_tokid(backend=llama.url)
        chats = [
            [
                {"role": "system", "content": words(300, "shared")},
                {"role": "user", "content": words(200, agent)},
            ]
            for agent in range(2)
        ]
        sent = [0, 0]
        for turn in range(4):
            for agent, messages in enumerate(chats):
                answer = post(
                    tokid.url + "/v1/chat/completions",
                    {"model": "m", "messages": messages, "max_tokens": 12, "temperature": 0},
                )
                body = answer.ok()
                if turn:
                    self.assertGreaterEqual(
                        body["timings"]["cache_n"],
                        0.97 * sent[agent],
                        f"agent {agent}, turn {turn}: {answer.headers}",
                    )
                sent[agent] = body["usage"]["prompt_tokens"]
                messages.append(
                    {"role": "assistant", "content": body["choices"][0]["message"]["content"]}
                )
                messages.append({"role": "user", "content": words(10, f"{agent} {turn}")})
                post(
                    tokid.url + "/v1/chat/completions",
                    {
                        "model": "m",
                        "max_tokens": 6,
                        "messages": [
                            {
                                "role": "user",
                                "content": "make a title for " + words(15, f"title {agent} {turn}"),
                            }
                        ],
                    },
                ).ok()


if __name__ == "__main__":
    harness.main()
