"""KV cache kept by a real llama-server in a folder that tokid is not told: whole slots under a fixed
set of names.
"""

import os

import harness
import saving
from harness import post, words

harness.require_parts()


class Remote(saving.Saving):
    names = 6

    def options(self):
        return ["--remote-states", str(self.names)]

    def complete(self, prompt, straight=False):
        body = {"prompt": prompt, "n_predict": 8, "temperature": 0, "return_tokens": True}
        body["ignore_eos"] = True
        if straight:
            body["cache_prompt"] = False
        answer = post(self.tokid.url + "/completion", body)
        return answer.ok(), answer.headers

    def tearDown(self):
        self.check_folder()

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

    def test_a_model_that_cannot_rewind_is_restored_whole_or_not_at_all(self):
        self.names = 12  # for all that may be saved in a pause, too: nothing has to make way
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
