"""Pinned prefixes in front of a real llama-server: other conversations do not clear them, and they are
there again after a restart of either.
"""

import os

import harness
from harness import call, get, post, words

harness.require_parts()


class Pins(harness.TestCase):
    def setUp(self):
        self.set_up(self.id().rsplit(".", 1)[1])

    def set_up(self, name):
        self.name = name
        self.slot_dir = os.path.join(self.folder, self.name + "-slots")
        os.makedirs(self.slot_dir)

    def start(self, store=True, **more):
        self.llama = type(self).start_llama(
            slots=2,
            name=self.name + "-llama",
            extra=["--slot-save-path", self.slot_dir, "--cache-ram", "0"],
            **more,
        )
        self.options = ["--slot-dir", self.slot_dir] if store else []
        self.start_toki("tokid")

    def start_toki(self, name, data_dir=None, options=()):
        self.tokid = type(self).start_tokid(
            backend=self.llama.url,
            options=[*self.options, *options],
            name=f"{self.name}-{name}",
            data_dir=data_dir,
        )

    def pin(self, body):
        made = post(self.tokid.url + "/toki/pins", body).ok()
        self.wait_held()
        return made

    def wait_held(self):
        self.tokid.stats_when(lambda stats: stats["pins_held"] == 1, "the pin is held", 60)

    def chat(self, messages, **more):
        body = {"messages": messages, "temperature": 0, "max_tokens": 8, **more}
        answer = post(self.tokid.url + "/v1/chat/completions", body)
        return answer.ok(), answer.headers

    def pinned_slot(self):
        return get(self.tokid.url + "/toki/pins").ok()["pins"][0]["slot"]

    def system(self):
        return {"role": "system", "content": words(400, "pinned")}

    def asked(self, question):
        return self.chat([self.system(), {"role": "user", "content": words(20, question)}])

    def others(self, count):
        for i in range(count):
            self.chat(
                [
                    {"role": "system", "content": words(150, f"other {i}")},
                    {"role": "user", "content": words(20, f"other question {i}")},
                ]
            )

    def check_pinned(self, made, question):
        answer, headers = self.asked(question)
        self.assertGreaterEqual(answer["timings"]["cache_n"], made["tokens"])
        self.assertEqual(headers["x-toki-slot"], str(self.pinned_slot()))
        self.assertEqual(self.tokid.stats()["integrity_faults_total"], 0)

    def survives(self):
        made = self.pin({"messages": [self.system()]})
        self.assertGreater(made["tokens"], 400)
        self.others(30)
        self.check_pinned(made, "one")
        self.others(3)
        self.check_pinned(made, "two")
        return made

    def test_a_pin_survives_other_conversations_and_both_restarts(self):
        self.start()
        made = self.survives()
        self.llama.kill()
        self.llama.start()
        self.tokid.stats_when(lambda stats: stats["upstream_restarts_total"] == 1, "it is seen", 60)
        self.wait_held()
        self.check_pinned(made, "three")
        self.tokid.stop()
        self.llama.kill()
        self.llama.start()
        self.start_toki("again", self.tokid.data_dir)
        self.wait_held()
        self.assertGreaterEqual(self.tokid.stats()["restores_total"], 1)
        self.check_pinned(made, "four")
        self.others(5)
        self.check_pinned(made, "five")

    def test_without_a_store_it_is_computed_again(self):
        self.start(store=False)
        made = self.survives()
        self.tokid.stop()
        self.llama.kill()
        self.llama.start()
        self.start_toki("again", self.tokid.data_dir)
        self.wait_held()
        self.check_pinned(made, "three")

    def test_texts_and_tools_are_true_beginnings_of_later_prompts(self):
        self.start()
        text = words(200, "text") + " unfin"
        made = self.pin({"text": text})
        for rest in ("ished and more", " a", "\n\n1", ""):
            answer = post(self.tokid.url + "/completion", {"prompt": text + rest, "n_predict": 4})
            self.assertGreaterEqual(
                answer.ok()["timings"]["cache_n"], made["tokens"] - (1 if rest == "" else 0)
            )
        call("DELETE", self.tokid.url + f"/toki/pins?id={made['id']}").ok()
        self.assertEqual(get(self.tokid.url + "/toki/pins").ok()["pins"], [])
        chat = [self.system(), {"role": "user", "content": "What is the weather?"}]
        made = self.pin({"messages": chat})
        answer, _ = self.chat(chat)
        self.assertGreaterEqual(answer["timings"]["cache_n"], made["tokens"] - 1)
        self.others(3)
        more = [answer["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        answer, _ = self.chat(chat + more)
        self.assertGreaterEqual(answer["timings"]["cache_n"], made["tokens"])

    def test_a_hot_prefix_is_pinned_by_itself(self):
        self.start()
        self.tokid.stop()
        self.start_toki("hot", self.tokid.data_dir, ["--pin-hot", "1"])
        for i in range(9):
            self.asked(f"hot {i}")
        self.wait_held()
        pins = get(self.tokid.url + "/toki/pins").ok()["pins"]
        self.assertFalse(pins[0]["by_hand"])
        self.assertGreater(pins[0]["tokens"], 380)
        self.others(5)
        answer, _ = self.asked("hot again")
        self.assertGreaterEqual(answer["timings"]["cache_n"], pins[0]["tokens"])

    def test_a_model_that_cannot_rewind_gets_its_pin_back(self):
        for variable in ("TOKI_LFM2", "TOKI_GEMMA3"):
            self.set_up(variable)
            self.start(model=os.environ[variable])
            made = self.pin({"messages": [self.system()]})
            computed = []
            for i in range(3):
                self.others(2)
                self.wait_held()
                answer, _ = self.asked(f"rewind {i}")
                computed.append(answer["timings"]["prompt_n"])
            self.assertLess(max(computed), made["tokens"] / 2, variable)


if __name__ == "__main__":
    harness.main()
