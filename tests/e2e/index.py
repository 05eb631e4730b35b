"""What tokid remembers and tells of prompts, in front of a real llama-server."""

import os
import signal
import sqlite3

import harness
from harness import get, post, words

harness.require_parts()

VOLATILE = "x-anthropic-billing-header:"


class Index(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.llama = cls.start_llama(slots=2)
        cls.options = ["--drop-volatile-line", VOLATILE]
        cls.tokid = cls.start_tokid(backend=cls.llama.url, options=cls.options)

    def chat_body(self, *messages):
        roles = ["system", "user", "assistant", "user"]
        return {
            "model": "m",
            "messages": [{"role": r, "content": m} for r, m in zip(roles, messages)],
            "temperature": 0,
            "max_tokens": 8,
        }

    def chat(self, body):
        answer = post(self.tokid.url + "/v1/chat/completions", body)
        return answer.ok()["timings"], answer.headers

    def lookup(self, body):
        return post(self.tokid.url + "/toki/lookup", body).ok()

    def test_a_lookup_says_what_the_server_then_does(self):
        system = words(200, "lookup")
        body = self.chat_body(system, "first question")
        before = self.lookup(body)
        self.assertLess(before["known_tokens"], 50)  # what every chat begins with
        timings, _ = self.chat(body)
        self.assertEqual(timings["prompt_n"] + timings["cache_n"], before["prompt_tokens"])
        other = self.chat_body(system, "another question")
        told = self.lookup(other)
        timings, headers = self.chat(other)
        self.assertEqual(told["reused_tokens"], timings["cache_n"])
        self.assertEqual(headers["x-toki-known"], str(told["known_tokens"]))
        self.assertEqual(told["nearest"]["parts_at_message"], 1)

    def test_the_place_of_a_changing_word_is_named(self):  # B08
        def body(time):
            text = words(150, "clock") + f" Now: {time} " + words(150, "behind")
            return self.chat_body(text, "q", "a", "r")

        self.chat(body("10:00:01"))
        told = self.lookup(body("10:00:02"))
        self.assertEqual(told["nearest"]["parts_at_message"], 0)
        timings, headers = self.chat(body("10:00:02"))
        self.assertEqual(timings["cache_n"], told["nearest"]["common_tokens"])
        self.assertEqual(headers["x-toki-known"], str(timings["cache_n"]))

    def test_the_place_is_named_in_a_chat_with_tools_too(self):
        def chat(place):
            messages = [
                {"role": "system", "content": words(60, "tools")},
                {"role": "user", "content": words(20, "ask")},
            ]
            for i in range(3):
                call = {"name": "f", "arguments": '{"x":"' + words(8, f"call {i}") + '"}'}
                tool = {"id": f"c{i}", "type": "function", "function": call}
                messages.append({"role": "assistant", "content": None, "tool_calls": [tool]})
                messages.append(
                    {"role": "tool", "tool_call_id": f"c{i}", "content": words(20, f"result {i}")}
                )
            if place is not None and messages[place]["content"]:
                messages[place]["content"] = "changed " + messages[place]["content"]
            return {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 4}

        self.chat(chat(None))
        for place in (1, 3, 5, 7):
            self.assertEqual(self.lookup(chat(place))["nearest"]["parts_at_message"], place)

    def test_a_volatile_first_line_costs_nothing(self):  # B01
        def body(cch):
            line = {"type": "text", "text": f"{VOLATILE} cc_version=1.0; cch={cch};"}
            system = [line, {"type": "text", "text": words(600, "agent")}]
            messages = [{"role": "user", "content": "q1"}]
            return {"model": "m", "max_tokens": 8, "system": system, "messages": messages}

        first = post(self.tokid.url + "/v1/messages", body("aaaaa")).ok()["usage"]
        second = post(self.tokid.url + "/v1/messages", body("bbbbb")).ok()["usage"]
        total = first["input_tokens"] + first.get("cache_read_input_tokens", 0)
        self.assertGreaterEqual(second["cache_read_input_tokens"], 0.95 * total)

    def test_a_locked_database_costs_nobody_anything(self):  # B38
        def written(stats):
            return stats["index_open"] and stats["index_queued"] == 0

        self.chat(self.chat_body(words(20, "before the lock"), "q"))
        before = self.tokid.stats_when(written, "the index is written")
        with sqlite3.connect(
            os.path.join(self.tokid.data_dir, "index.db"), isolation_level=None
        ) as other:
            other.execute("BEGIN EXCLUSIVE")
            bodies = [self.chat_body(words(20, f"locked {i}"), f"q{i}") for i in range(50)]
            for timings, _ in harness.in_parallel([lambda b=b: self.chat(b) for b in bodies]):
                self.assertGreater(timings["prompt_n"], 0)
            self.assertGreater(self.tokid.stats()["index_queued"], 0)
            other.execute("ROLLBACK")
        after = self.tokid.stats_when(
            lambda stats: written(stats)
            and stats["index_written_total"] + stats["index_dropped_total"]
            >= before["index_written_total"] + 50,
            "what waited is written",
            limit_s=40,
        )
        self.assertEqual(after["requests_failed"], before["requests_failed"])

    def test_what_is_known_outlives_toki(self):
        body = self.chat_body(words(100, "outlives"), "q")
        self.chat(body)
        tokens = self.lookup(body)["prompt_tokens"]
        for end in (signal.SIGTERM, signal.SIGKILL):
            self.tokid.stats_when(
                lambda stats: stats["index_queued"] == 0 and stats["index_open"], "it is written"
            )
            self.tokid.process.child.send_signal(end)
            self.tokid.process.child.wait(timeout=30)
            type(self).tokid = self.start_tokid(
                backend=self.llama.url,
                options=self.options,
                name=f"tokid-after-{end}",
                data_dir=self.tokid.data_dir,
            )
            self.tokid.stats_when(lambda stats: stats["prompts_known"] > 0, "it is read")
            entries = get(self.tokid.url + "/toki/entries").ok()["entries"]
            self.assertIn(tokens, [entry["tokens"] for entry in entries])
            self.assertEqual(self.lookup(body)["known_tokens"], tokens)


if __name__ == "__main__":
    harness.main()
