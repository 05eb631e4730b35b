"""KV cache kept by a real llama-server in a folder that tokid is not told: whole slots under a fixed
set of names.
"""

import os

import harness
from harness import post, words

harness.require_parts()


class Remote(harness.TestCase):
    names = 6

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
            options=["--remote-states", str(self.names)],
            name=f"{self.name}-{name}",
            data_dir=data_dir,
        )

    def chat(self, messages, **more):
        body = {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 16, **more}
        answer = post(self.tokid.url + "/v1/chat/completions", body)
        return answer.ok(), answer.headers

    def complete(self, prompt, straight=False):
        body = {"prompt": prompt, "n_predict": 8, "temperature": 0, "return_tokens": True}
        body["ignore_eos"] = True
        if straight:
            body["cache_prompt"] = False
        answer = post(self.tokid.url + "/completion", body)
        return answer.ok(), answer.headers

    def conversation(self, seed, count=300):
        return [
            {"role": "system", "content": words(count, seed)},
            {"role": "user", "content": words(20, seed + " question")},
        ]

    def check_folder(self):
        files = os.listdir(self.slot_dir)
        self.assertLessEqual(len(files), self.names, files)
        return files

    def test_displaced_conversations_come_back(self):
        self.start(slots=1)
        stats = self.tokid.stats()
        self.assertEqual((stats["can_save"], stats["can_cut"]), (1, 1))
        talks = [self.conversation(f"talk {i}") for i in range(4)]
        for turn in range(3):
            for talk in talks:
                answer, headers = self.chat(talk)
                if turn:
                    self.assertEqual(headers["x-toki-reason"], "restored")
                    self.assertGreaterEqual(
                        answer["timings"]["cache_n"], int(headers["x-toki-reused"])
                    )
                    self.assertGreater(answer["timings"]["cache_n"], 300)
                talk.append(answer["choices"][0]["message"])
                talk.append({"role": "user", "content": words(20, "next")})
                self.check_folder()
        stats = self.tokid.stats()
        self.assertEqual(stats["integrity_faults_total"], 0)
        self.assertEqual(stats["restore_failures_total"], 0)
        self.assertEqual(stats["named_dropped_total"], 0)

    def test_more_conversations_than_names_leave_no_more_files(self):
        self.start(slots=2)
        for i in range(3 * self.names):
            self.chat(self.conversation(f"many {i}", 150))
        self.check_folder()
        self.assertEqual(self.tokid.stats()["named_states"], self.names)

    def test_a_second_conversation_gets_the_first_ones_beginning(self):
        self.start(slots=2)
        system = self.conversation("shared", 500)[0]
        self.chat([system, {"role": "user", "content": words(60, "one")}])
        answer, headers = self.chat([system, {"role": "user", "content": words(60, "two")}])
        self.assertEqual(headers["x-toki-source"], "copy")
        self.assertGreater(answer["timings"]["cache_n"], 500)

    def test_texts_are_those_of_the_live_slot_and_tokid_may_be_started_again(self):
        self.start(slots=2)
        prompts = [self.conversation(f"text {i}", 200) for i in range(4)]
        live = []
        for prompt in prompts:
            answer = self.chat(prompt)[0]
            prompt.append(answer["choices"][0]["message"])
            prompt.append({"role": "user", "content": words(20, "go on")})
            live.append(self.chat(prompt)[0]["choices"][0]["message"]["content"])
        self.assertEqual(self.tokid.stop(), 0)
        for slot in range(2):
            post(self.llama.url + f"/slots/{slot}?action=erase", {})
        self.start_toki("again", self.tokid.data_dir)
        restored, sources = [], []
        for prompt in prompts:
            answer, headers = self.chat(prompt)
            restored.append(answer["choices"][0]["message"]["content"])
            sources.append(headers["x-toki-source"])
            self.assertGreater(answer["timings"]["cache_n"], 200)
        self.assertEqual(restored, live)
        self.assertEqual(sources, ["disk"] * len(prompts))
        self.check_folder()

    def test_both_may_be_started_again(self):
        self.start(slots=2)
        talks = [self.conversation(f"kept {i}") for i in range(3)]
        for talk in talks:
            self.chat(talk)
        self.tokid.stop()
        self.llama.kill()
        self.llama.start()
        self.start_toki("again", self.tokid.data_dir)
        for talk in talks:
            answer, headers = self.chat(talk)
            self.assertEqual(headers["x-toki-source"], "disk")
            self.assertEqual(answer["timings"]["prompt_n"], 1)
        self.check_folder()

    def test_a_folder_that_was_emptied_costs_only_the_prefill(self):
        self.start(slots=1)
        talks = [self.conversation(f"lost {i}") for i in range(2)]
        for talk in talks:
            self.chat(talk)
        for file in os.listdir(self.slot_dir):
            os.remove(os.path.join(self.slot_dir, file))
        answer, _ = self.chat(talks[0])
        self.assertEqual(answer["timings"]["cache_n"], 0)
        stats = self.tokid.stats_when(lambda s: s["named_dropped_total"] == 1, "it is forgotten")
        self.assertEqual(stats["requests_completed"], 3)

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
        answer, _ = self.chat(talk)
        self.assertEqual(answer["timings"]["cache_n"], 0)
        self.assertEqual(self.tokid.stats()["restores_total"], 0)

    def test_a_model_that_cannot_rewind_is_restored_whole_or_not_at_all(self):
        self.start(slots=1, model=os.environ["TOKI_LFM2"])
        stats = self.tokid.stats()
        self.assertEqual((stats["can_save"], stats["can_cut"], stats["can_rewind"]), (1, 0, 0))
        prompts = [[100 + i + 7 * j % 900 for j in range(400)] for i in range(3)]
        for prompt in prompts:
            answer, _ = self.complete(prompt)
            prompt += answer["tokens"] + [50, 51, 52]
        plain = [self.complete(prompt, straight=True)[0] for prompt in prompts]
        for prompt, cold in zip(prompts[:2], plain):
            answer, headers = self.complete(prompt)
            self.assertEqual(headers["x-toki-reason"], "restored")
            self.assertGreaterEqual(answer["timings"]["cache_n"], 399)  # the first prompt's last stage
            self.assertEqual(answer["tokens"], cold["tokens"])
            parting, headers = self.complete(prompt[:200] + prompt[:30])
            self.assertEqual(parting["timings"]["cache_n"], 0)
        self.check_folder()
        self.assertEqual(self.tokid.stats()["integrity_faults_total"], 0)
        self.assertEqual(self.tokid.stats()["named_dropped_total"], 0)

    def test_without_a_folder_nothing_is_saved(self):
        llama = type(self).start_llama(slots=None, name="bare", extra=["-np", "2", "-c", "4096"])
        self.llama = llama
        self.start_toki("bare-tokid")
        self.assertTrue(self.chat(self.conversation("bare", 50))[0]["choices"])
        self.assertEqual(self.tokid.stats()["can_save"], 0)
        self.assertEqual(self.tokid.stats()["save_failures_total"], 0)


if __name__ == "__main__":
    harness.main()
