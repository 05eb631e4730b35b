"""A program that has only the C API, in front of a real llama-server: this one, through ctypes. What it
displaces comes back from disk with the same answer, also after all has been started again.
"""

import ctypes as c
import os
import sys

import harness
from harness import post, words

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples"))
import python_ctypes as toki_c  # noqa: E402

harness.require_parts()
if not os.path.exists(os.environ.get("TOKI_LIBRARY", "")):
    harness.skip("TOKI_LIBRARY names no file")

SLOTS, CONTEXT, BACKEND_FAILED = 2, 4096, 6


class Abilities(toki_c.Sized):
    _fields_ = [("size", c.c_size_t), ("saves", c.c_bool), ("cuts", c.c_bool)]


class StoreOptions(toki_c.Sized):
    _fields_ = [("size", c.c_size_t), ("dir", c.c_char_p), ("slot_dir", c.c_char_p)]


class Timed(toki_c.Sized):
    _fields_ = [("size", c.c_size_t), ("tokens", c.c_uint64), ("ms", c.c_double)]


MoveState = c.CFUNCTYPE(
    c.c_int32, c.c_void_p, c.c_uint32, c.c_char_p, c.POINTER(Timed), c.POINTER(toki_c.Error)
)


class Table(toki_c.Sized):
    _fields_ = [("size", c.c_size_t), ("user", c.c_void_p), ("prefill", c.c_void_p),
                ("save", MoveState), ("restore", MoveState), ("erase", c.c_void_p)]


class App:
    """The program: one engine, one store, one server."""

    def __init__(self, server, folder):
        self.server, self.steps = server, []
        self.lib = toki_c.Toki(os.environ["TOKI_LIBRARY"])
        self.engine, self.store = c.c_void_p(), c.c_void_p()
        options = StoreOptions(
            dir=os.path.join(folder, "store").encode(), slot_dir=server.slot_folder.encode()
        )
        self.lib.call("store_open", c.byref(options), c.byref(self.store))
        self.lib.call("engine_create", None, c.byref(self.engine))
        facts = toki_c.Facts(slots=SLOTS, context=CONTEXT, slots_empty=True, slots_only=True)
        self.lib.call("engine_backend_changed", self.engine, c.byref(facts))
        self.lib.call("engine_set_abilities", self.engine, c.byref(Abilities(saves=True, cuts=True)))
        self.lib.call("engine_use_store", self.engine, self.store)
        self.table = Table(save=self.mover("save", "n_saved"), restore=self.mover("restore", "n_restored"))

    def mover(self, action, count):
        def move(user, slot, file, done, error):
            answer = post(f"{self.server.url}/slots/{slot}?action={action}", {"filename": file.decode()})
            self.steps.append(action)
            if answer.status != 200:
                error.contents.message = answer.body[:500]
                return BACKEND_FAILED
            done.contents.tokens = answer.json()[count]
            return toki_c.OK

        return MoveState(move)

    def ask(self, tokens):
        """The answer's text, and how many tokens of the prompt were reused."""
        prompt, self.steps = toki_c.array(tokens), []
        query, ticket = toki_c.Query(tokens=prompt, count=len(prompt)), c.c_void_p()
        self.lib.call("engine_begin", self.engine, c.byref(query), c.byref(ticket))
        self.lib.call("ticket_run_steps", ticket, c.byref(self.table), self.store)
        self.trouble = self.lib.value("ticket_trouble", c.c_char_p, ticket).decode()
        slot = self.lib.value("ticket_slot", c.c_int32, ticket)
        self.lib.value("ticket_sent", None, ticket)
        body = {"prompt": tokens, "id_slot": slot, "n_predict": 8, "temperature": 0,
                "cache_prompt": True, "return_tokens": True}
        answer = post(self.server.url + "/completion", body).ok()
        timings, generated = answer["timings"], toki_c.array(answer["tokens"])
        outcome = toki_c.Outcome(
            ending=toki_c.ENDING_COMPLETED, computed=True,
            prompt_tokens=timings["cache_n"] + timings["prompt_n"], cached_tokens=timings["cache_n"],
            prompt_ms=timings["prompt_ms"], generated=generated, generated_tokens=len(generated))
        account = toki_c.Account()
        self.lib.call("ticket_finish", ticket, c.byref(outcome), c.byref(account))
        return answer["content"], account.reused

    def save_all(self):
        try:
            while True:
                self.lib.call("engine_run_chore", self.engine, c.byref(self.table), self.store, c.c_bool(False))
        except RuntimeError:
            pass  # nothing is left

    def stat(self, name):
        value = c.c_double()
        self.lib.call("stats_get", self.engine, self.store, name.encode(), c.byref(value))
        return value.value

    def close(self):
        self.lib.value("engine_free", None, self.engine)
        self.lib.value("store_close", None, self.store)


class CApi(harness.TestCase):
    def test_what_was_displaced_comes_back_with_the_same_answer(self):
        server = self.start_llama(slots=SLOTS, context=CONTEXT)
        app = App(server, self.folder)
        prompts = [post(server.url + "/tokenize", {"content": words(900, seed)}).ok()["tokens"]
                   for seed in range(4)]
        first, cold = app.ask(prompts[0])
        self.assertEqual(cold, 0)
        for prompt in prompts[1:]:
            app.ask(prompt)
        self.assertIn("save", app.steps)
        again, reused = app.ask(prompts[0])
        self.assertIn("restore", app.steps, app.trouble)
        self.assertEqual(again, first)
        self.assertEqual(reused, len(prompts[0]) - 1)
        app.save_all()
        app.close()

        server.start()
        app = App(server, self.folder)
        again, reused = app.ask(prompts[0])
        self.assertEqual(again, first)
        self.assertEqual(reused, len(prompts[0]) - 1)
        part = prompts[1][:700] + prompts[2][:50]
        _, reused = app.ask(part)
        self.assertGreaterEqual(reused, 700)
        self.assertEqual(app.stat("restore_failures_total"), 0)
        self.assertEqual(app.stat("integrity_faults_total"), 0)
        app.close()


if __name__ == "__main__":
    harness.main()
