"""A llama-server that saves its slots in a folder, and one tokid before it: what the tests of both ways
of keeping states begin with, and what must hold for both.
"""

import os

import harness
from harness import post, words


class Saving(harness.TestCase):
    def options(self):
        """What tokid is told of the folder."""
        raise NotImplementedError

    def setUp(self):
        self.name = self.id().rsplit(".", 1)[1]
        self.slot_dir = os.path.join(self.folder, self.name + "-slots")
        os.makedirs(self.slot_dir)

    def start(self, slots, model=None, extra=()):
        more = {"model": model} if model else {}
        self.llama = type(self).start_llama(
            slots=slots,
            name=self.name + "-llama",
            extra=["--slot-save-path", self.slot_dir, "--cache-ram", "0", *extra],
            **more,
        )
        self.start_toki("tokid")

    def start_toki(self, name, data_dir=None):
        self.tokid = type(self).start_tokid(
            backend=self.llama.url,
            options=self.options(),
            name=f"{self.name}-{name}",
            data_dir=data_dir,
        )

    def start_both_again(self):
        self.tokid.stop()
        self.llama.kill()
        self.llama.start()
        self.start_toki("again", self.tokid.data_dir)

    def chat(self, messages, **more):
        body = {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 16, **more}
        answer = post(self.tokid.url + "/v1/chat/completions", body)
        return answer.ok(), answer.headers

    def conversation(self, seed, count=300):
        return [
            {"role": "system", "content": words(count, seed)},
            {"role": "user", "content": words(20, seed + " question")},
        ]

    def test_a_second_conversation_gets_a_copy_of_the_first_ones_beginning(self):
        self.start(slots=3)
        system = self.conversation("shared", 500)[0]
        # While a request runs nothing is saved for its own sake, so the first one's state is in its
        # slot alone. It runs until its client leaves, who reads none of what is too much to buffer.
        body = {"prompt": words(20, "long"), "n_predict": 3500, "ignore_eos": True, "n_probs": 100}
        with harness.Stream(self.tokid.url + "/completion", {**body, "stream": True}) as stream:
            self.assertEqual(stream.status, 200)
            self.chat([system, {"role": "user", "content": words(60, "one")}])
            answer, headers = self.chat([system, {"role": "user", "content": words(60, "two")}])
            self.assertEqual(self.tokid.stats()["slots_busy"], 1)
        self.assertEqual(headers["x-toki-source"], "copy")
        self.assertGreater(answer["timings"]["cache_n"], 500)

    def test_both_may_be_started_again(self):
        self.start(slots=2)
        talks = [self.conversation(f"kept {i}") for i in range(3)]
        for talk in talks:
            self.chat(talk)
        self.start_both_again()
        for talk in talks:
            answer, headers = self.chat(talk)
            self.assertEqual(headers["x-toki-source"], "disk")
            self.assertEqual(answer["timings"]["prompt_n"], 1)

    def test_another_model_of_the_same_shape_gets_nothing_of_it(self):
        model = os.path.join(self.folder, "same-name.gguf")
        make = os.environ["TOKI_MAKE_GGUF"]
        os.system(f"{make} --size tiny --seed 1 {model}")
        self.start(slots=2, model=model)
        talk = self.conversation("weights")
        self.chat(talk)
        self.tokid.stop()
        self.llama.kill()
        os.system(f"{make} --size tiny --seed 2 {model}")
        self.llama.start()
        self.start_toki("again", self.tokid.data_dir)
        answer, headers = self.chat(talk)
        self.assertEqual(answer["timings"]["cache_n"], 0)
        self.assertNotEqual(headers["x-toki-source"], "disk")
        self.assertEqual(self.tokid.stats()["restores_total"], 0)
