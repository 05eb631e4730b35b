"""KV cache on disk, in front of a real llama-server: what was displaced comes back, over restarts of
both, into other slots, and with the same texts.
"""

import os

import harness
import saving
from harness import get, post, words

harness.require_parts()


class Kv(saving.Saving):
    def options(self):
        return ["--slot-dir", self.slot_dir]

    def test_displaced_conversations_come_back_from_disk(self):
        self.start(slots=1)
        self.assertEqual(self.tokid.stats()["can_cut"], 1)
        talks = [self.conversation(f"talk {i}") for i in range(3)]
        for talk in talks:
            answer, _ = self.chat(talk)
            talk.append(answer["choices"][0]["message"])
            talk.append({"role": "user", "content": words(20, "next")})
        for talk in talks[:2]:
            answer, headers = self.chat(talk)
            self.assertEqual(headers["x-toki-source"], "disk")
            self.assertEqual(headers["x-toki-reason"], "restored")
            self.assertEqual(answer["timings"]["cache_n"], int(headers["x-toki-reused"]))
            self.assertGreater(answer["timings"]["cache_n"], 300)
        self.assertEqual(self.tokid.stats()["integrity_faults_total"], 0)
        # One that is saved in this pause is there until the store has taken it.
        harness.wait_until(lambda: not os.listdir(self.slot_dir), "no state file is left behind")

    def test_restored_texts_are_those_of_the_live_slot(self):
        self.start(slots=2)
        prompts = [self.conversation(f"text {i}", 120) for i in range(6)]
        first = [self.chat(prompt)[0] for prompt in prompts]
        live, restored, reused = [], [], []
        for prompt, answer in zip(prompts, first):
            more = prompt + [answer["choices"][0]["message"], prompt[1]]
            self.chat(prompt)
            live.append(self.chat(more)[0]["choices"][0]["message"]["content"])
        post(self.tokid.url + "/v1/chat/completions", {"messages": self.conversation("other")})
        for slot in range(2):
            post(self.llama.url + f"/slots/{slot}?action=erase", {})
        self.tokid.stop()
        self.start_toki("again", self.tokid.data_dir)
        for prompt, answer in zip(prompts, first):
            more = prompt + [answer["choices"][0]["message"], prompt[1]]
            again, headers = self.chat(more)
            restored.append(again["choices"][0]["message"]["content"])
            reused.append(headers["x-toki-source"])
        self.assertEqual(restored, live)
        self.assertIn("disk", reused)

    def test_a_cold_prefix_is_computed_once_for_all_that_want_it(self):
        self.start(slots=4)
        warm = self.conversation("warm", 800)
        self.chat(warm)  # so that the rate is known
        # Where a prefill is too short to be led, everyone computes; and who comes late on a busy machine
        # finds nobody to wait for. So it is tried some times, and the figures say how it went.
        for attempt in range(4):
            before = self.tokid.stats()
            system = {"role": "system", "content": words(900, f"cold prefix {attempt}")}
            talks = [[system, {"role": "user", "content": words(20, f"q{i}")}] for i in range(4)]
            answers = harness.in_parallel([lambda talk=talk: self.chat(talk) for talk in talks])
            after = self.tokid.settled_stats()
            grown = {name: after[name] - before[name] for name in after}
            size = max(answer["usage"]["prompt_tokens"] for answer, _ in answers)
            waited = grown["coalesced_total"]
            self.assertGreaterEqual(grown["restores_total"], waited)
            # Whoever waited computed at most its own question.
            self.assertLessEqual(grown["computed_tokens_total"], 4 * size - waited * 900)
            self.assertEqual(grown["integrity_faults_total"], 0)
            if grown["computed_tokens_total"] < 2 * size:
                break  # once for all

    def test_a_flush_saves_what_is_unsaved_and_answers_when_it_is_on_disk(self):
        self.start(slots=2)
        talk = self.conversation("flush")
        self.chat(talk)
        flushed = post(self.tokid.url + "/toki/flush", {}).ok()
        self.assertEqual(flushed["unsaved"], [])
        self.assertTrue(flushed["index"])
        stats = self.tokid.stats()
        self.assertGreater(stats["kv_tokens"], 300)
        self.assertEqual(stats["index_queued"], 0)
        self.tokid.process.kill()
        self.llama.kill()
        self.llama.start()
        self.start_toki("again", self.tokid.data_dir)
        answer, headers = self.chat(talk)
        self.assertEqual(headers["x-toki-source"], "disk")
        self.assertEqual(answer["timings"]["prompt_n"], 1)

    def test_a_flush_names_the_slots_that_stay_busy(self):
        self.start(slots=2)
        body = {"prompt": words(100, "long"), "n_predict": 3000, "ignore_eos": True}
        with harness.Stream(self.tokid.url + "/completion", {**body, "stream": True}) as stream:
            next(stream.events())
            flushed = post(self.tokid.url + "/toki/flush?limit_ms=200", {}).ok()
            self.assertEqual(flushed["unsaved"], [int(stream.headers["x-toki-slot"])])

    def stored(self):
        entries = get(self.tokid.url + "/toki/entries").ok()["entries"]
        return {e["id"] or f"stored {e['stored_id']}": e["stored_tokens"] for e in entries}

    def test_everything_that_is_forgotten_is_computed_again(self):
        self.start(slots=2)
        talk = self.conversation("forgotten")
        first, _ = self.chat(talk)
        post(self.tokid.url + "/toki/flush", {}).ok()
        self.assertEqual(len(self.stored()), 1)
        gone = harness.call("DELETE", self.tokid.url + "/toki/entries").ok()
        self.assertEqual(gone["prompts"], 1)
        self.assertGreaterEqual(gone["segments"], 1)
        self.assertEqual(self.stored(), {})
        files = os.listdir(os.path.join(self.tokid.data_dir, "kv"))
        self.assertEqual([name for name in files if name.endswith(".trkv")], [])
        again, _ = self.chat(talk)
        self.assertEqual(again["timings"]["cache_n"], 0)
        self.assertEqual(
            again["choices"][0]["message"]["content"], first["choices"][0]["message"]["content"]
        )
        self.assertEqual(self.tokid.stats()["integrity_faults_total"], 0)

    def test_one_prompt_is_forgotten_and_what_another_shares_with_it_stays(self):
        self.start(slots=2)
        system = self.conversation("shared", 400)[0]
        gone = [system, {"role": "user", "content": words(200, "gone")}]
        kept = [system, {"role": "user", "content": words(200, "kept")}]
        first, _ = self.chat(gone)
        (gone_id,) = self.stored()
        self.chat(kept)
        post(self.tokid.url + "/toki/flush", {}).ok()
        before = self.stored()
        self.assertEqual(len(before), 2)
        self.assertTrue(all(before.values()), before)
        prompt = first["usage"]["prompt_tokens"]
        harness.call("DELETE", self.tokid.url + f"/toki/entries?id={gone_id}").ok()
        after = self.stored()
        self.assertEqual(after, {i: n for i, n in before.items() if i != gone_id})
        self.assertEqual(
            harness.call("DELETE", self.tokid.url + f"/toki/entries?id={gone_id}").status, 404
        )
        for slot in range(2):
            post(self.tokid.url + f"/slots/{slot}?action=erase", {})
        answer, headers = self.chat(kept)
        self.assertEqual(headers["x-toki-source"], "disk")
        self.assertEqual(answer["timings"]["prompt_n"], 1)
        answer, _ = self.chat(gone)
        self.assertLess(answer["timings"]["cache_n"], prompt - 150)
        self.assertGreater(answer["timings"]["cache_n"], 380)

    def test_what_is_stored_but_not_remembered_is_shown_and_forgotten_too(self):
        self.start(slots=1)
        talk = self.conversation("stored only")
        self.chat(talk)
        post(self.tokid.url + "/toki/flush", {}).ok()
        self.tokid.stop()
        os.remove(os.path.join(self.tokid.data_dir, "index.db"))
        self.start_toki("again", self.tokid.data_dir)
        (entry,) = get(self.tokid.url + "/toki/entries").ok()["entries"]
        self.assertIsNone(entry["id"])
        self.assertGreater(entry["stored_tokens"], 300)
        url = self.tokid.url + f"/toki/entries?stored_id={entry['stored_id']}"
        harness.call("DELETE", url).ok()
        self.assertEqual(self.stored(), {})
        self.assertEqual(self.chat(talk)[0]["timings"]["cache_n"], 0)
        self.assertEqual(harness.call("DELETE", url).status, 404)

    def test_saves_that_fail_cost_nobody_an_answer(self):  # B45
        self.start(slots=1)
        os.chmod(self.slot_dir, 0o500)
        os.rename(self.slot_dir, self.slot_dir + "-gone")
        for i in range(6):
            answer, _ = self.chat(self.conversation(f"no folder {i}", 100))
            self.assertTrue(answer["choices"])
        stats = self.tokid.stats()
        self.assertLessEqual(stats["save_failures_total"], 3)
        self.assertEqual(stats["requests_completed"], 6)


if __name__ == "__main__":
    harness.main()
