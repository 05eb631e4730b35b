"""The files of a real llama-server are read to the last byte; cut, joined and written for another
slot they are restored, and go on with the text of a run that restored nothing.
"""

import filecmp
import os
import random
import subprocess

import harness
from harness import post, words

harness.require_parts()
if not os.path.exists(os.environ.get("TOKI_STATE_TOOL", "")):
    harness.skip("TOKI_STATE_TOOL names no file")

ROUNDS = int(os.environ.get("TOKI_STATE_ROUNDS", "20"))
SHARED = 100  # tokens that the two prompts of a round have in common
CUT = 64
LENGTH = 64  # tokens of a continuation


def tool(*arguments):
    return subprocess.run(
        [os.environ["TOKI_STATE_TOOL"], *map(str, arguments)], capture_output=True, text=True
    )


class Slots(harness.LlamaServer):
    """A llama-server with what the tests do to its slots."""

    def path(self, name):
        return os.path.join(self.slot_folder, name)

    def tokens(self, text):
        body = {"content": text, "add_special": True, "parse_special": True}
        return post(self.url + "/tokenize", body).ok()["tokens"]

    def complete(self, tokens, slot, length=LENGTH, cache=True):
        body = {
            "prompt": tokens,
            "id_slot": slot,
            "n_predict": length,
            "temperature": 0,
            "cache_prompt": cache,
        }
        answer = post(self.url + "/completion", body).ok()
        return answer["content"], answer["timings"]["cache_n"]

    def action(self, slot, action, name):
        return post(f"{self.url}/slots/{slot}?action={action}", {"filename": name}).ok()

    def save(self, slot, name):
        return self.action(slot, "save", name)["n_saved"]

    def restore(self, slot, name):
        return self.action(slot, "restore", name)["n_restored"]


class Case(harness.TestCase):
    def tool(self, *arguments):
        done = tool(*arguments)
        self.assertEqual(done.returncode, 0, f"state_tool {arguments}: {done.stderr}")
        return done.stdout

    def info(self, path):
        lines = self.tool("info", path).splitlines()
        return {name: int(value) for name, value in map(str.split, lines)}

    @classmethod
    def start(cls, name, slots=4, extra=()):
        server = Slots(cls.folder, slots=slots, name=name, extra=extra)
        cls.addClassCleanup(server.close)
        return server

    def round_tokens(self, server, at):
        """Two prompts with the first SHARED tokens in common, and how a third goes on."""
        shared = server.tokens(words(150, f"shared {at}"))[:SHARED]
        a, b, more = (server.tokens(words(60, f"{at} {name}"))[1:41] for name in "abm")
        self.assertNotEqual(a, b)
        return shared + a, shared + b, more


class Standard(Case):
    """The same tests for every way of starting the server."""

    extra = ()
    slots = 4
    wanted = {"version": 4, "packed": 1, "v_transposed": 0, "k_rot": 0, "v_rot": 0, "streams": 4}
    row_bytes = 4096
    like_live = True

    @classmethod
    def setUpClass(cls):
        if cls is Standard:
            raise harness.unittest.SkipTest("only its subclasses")
        super().setUpClass()
        cls.server = cls.start("llama-server", slots=cls.slots, extra=cls.extra)

    def slot(self, wanted):
        return wanted if self.slots > 1 else 0

    def saved(self, tokens, slot, name):
        """The tokens computed in the slot and saved: the file's path."""
        server = self.server
        server.complete(tokens, slot, 0, cache=False)
        self.assertEqual(server.save(slot, name), len(tokens))
        path = server.path(name)
        info = self.info(path)
        wanted = {**self.wanted, "tokens": len(tokens), "bytes_per_token": self.row_bytes}
        self.assertEqual({key: info[key] for key in wanted}, wanted)
        self.assertEqual(info["slot"], slot)
        return path

    def check_continuation(self, name, slot, held, more, differing):
        """Restored, the file goes on like a run that restored nothing, and computes nothing again.

        That run is one without cache or, as another shape of the batch may round differently, one
        that continues the slot which computed the beginning.
        """
        server = self.server
        self.assertEqual(server.restore(slot, name), len(held))
        text, cache_n = server.complete(held + more, slot)
        self.assertEqual(cache_n, len(held), name)
        cold, cache_n = server.complete(held + more, slot, cache=False)
        self.assertEqual(cache_n, 0)
        if text == cold:
            return
        differing.append(f"{name}\n  restored {text!r}\n  cold     {cold!r}")
        if not self.like_live:
            return
        server.complete(held, slot, 0, cache=False)
        live, cache_n = server.complete(held + more, slot)
        self.assertEqual((text, cache_n), (live, len(held)), f"{name}: not what the live slot says")

    def test_files_are_read_cut_joined_and_restored_elsewhere(self):
        differing = []
        server = self.server
        for at in range(ROUNDS):
            a, b, more = self.round_tokens(server, at)
            a_path = self.saved(a, self.slot(1), "a.bin")
            b_path = self.saved(b, self.slot(3), "b.bin")

            self.tool("cut", a_path, len(a), self.slot(1), server.path("same.bin"))
            self.assertTrue(
                filecmp.cmp(a_path, server.path("same.bin"), shallow=False),
                "written again it is another file",
            )
            self.tool("cut", a_path, len(a), self.slot(2), server.path("whole.bin"))
            self.check_continuation("whole.bin", self.slot(2), a, more, differing)
            self.tool("cut", a_path, CUT, self.slot(3), server.path("cut.bin"))
            self.check_continuation("cut.bin", self.slot(3), a[:CUT], more, differing)
            self.tool("join", a_path, b_path, CUT, self.slot(0), server.path("joined.bin"))
            self.check_continuation("joined.bin", self.slot(0), b, more, differing)
        print(f"{3 * ROUNDS - len(differing)} of {3 * ROUNDS} equal to cold runs", flush=True)
        self.assertLessEqual(len(differing), ROUNDS // 2, "\n".join(differing))

    def test_a_generated_answer_is_part_of_the_file(self):
        server = self.server
        prompt = server.tokens(words(80, "generated"))
        server.complete(prompt, 0, 24, cache=False)
        count = server.save(0, "generated.bin")
        info = self.info(server.path("generated.bin"))
        self.assertEqual(info["tokens"], count)
        self.assertGreaterEqual(count, len(prompt))

    def test_an_empty_slot_is_opaque(self):
        server = self.server
        post(f"{server.url}/slots/0?action=erase", {}).ok()
        self.assertEqual(server.save(0, "empty.bin"), 0)
        self.assertEqual(tool("info", server.path("empty.bin")).returncode, 3)


class Plain(Standard):
    pass


class OneSlot(Standard):
    slots = 1
    wanted = {**Standard.wanted, "streams": 1}


class Unified(Standard):
    extra = ("-kvu", "--no-cache-idle-slots")
    wanted = {**Standard.wanted, "streams": 1}

    # Where the cells lie changes how attention rounds, and a live slot's lie elsewhere.
    like_live = False

    def test_cells_that_slots_left_to_each_other_are_put_in_order(self):
        server = self.server
        differing, found = [], 0
        rng = random.Random("toki cells")
        conversations = [[], [], [], []]
        for at in range(20 * ROUNDS):
            # They grow and are taken back, each into whatever cells the others have left.
            slot = rng.randrange(4)
            kept = conversations[slot][: rng.randrange(300)]
            new = server.tokens(words(rng.randrange(20, 150), f"cells {at}"))
            held = conversations[slot] = kept + new[1 if kept else 0 :]
            more = server.tokens(words(40, f"more {at}"))[1:]
            server.complete(held, slot, 0)
            self.assertEqual(server.save(slot, "mixed.bin"), len(held))
            if self.info(server.path("mixed.bin"))["in_order"] == 1:
                continue
            found += 1
            self.tool("cut", server.path("mixed.bin"), len(held), 2, server.path("ordered.bin"))
            self.assertEqual(self.info(server.path("ordered.bin"))["in_order"], 1)
            self.check_continuation("ordered.bin", 2, held, more, differing)
            if found == ROUNDS:
                break
        print(f"{found - len(differing)} of {found} equal to cold runs", flush=True)
        self.assertEqual(found, ROUNDS)
        self.assertLessEqual(len(differing), ROUNDS // 4, "\n".join(differing))


class Quantised(Standard):
    extra = ("-ctk", "q8_0", "-ctv", "q8_0")
    wanted = {**Standard.wanted, "k_rot": 64, "v_rot": 64}
    row_bytes = 4096 // 64 * 34


class Transposed(Standard):
    extra = ("-fa", "off")
    wanted = {**Standard.wanted, "v_transposed": 1}


class Moved(Case):
    """Rows saved by one server, in the layout of another one."""

    def restore_elsewhere(self, source, target, text_too):
        server = self.start(self.id() + "-source", extra=source[1], slots=source[0])
        other = self.start(self.id() + "-target", extra=target[1], slots=target[0])
        slot = target[0] - 1
        equal = 0
        for at in range(ROUNDS):
            a, _, more = self.round_tokens(server, at)
            server.complete(a, 0, 0, cache=False)
            server.save(0, "a.bin")
            other.complete(a[:5], slot, 0, cache=False)
            other.save(slot, "like.bin")
            moved = other.path("moved.bin")
            self.tool("as", server.path("a.bin"), other.path("like.bin"), slot, moved)
            self.assertEqual(other.restore(slot, "moved.bin"), len(a))
            text, cache_n = other.complete(a + more, slot)
            self.assertEqual(cache_n, len(a))
            equal += text == other.complete(a + more, slot, cache=False)[0]
            self.tool("as", moved, server.path("a.bin"), 0, server.path("back.bin"))
            self.assertTrue(
                filecmp.cmp(server.path("a.bin"), server.path("back.bin"), shallow=False)
            )
        print(f"{equal} of {ROUNDS} equal to cold runs", flush=True)
        if text_too:
            self.assertGreaterEqual(equal, ROUNDS - ROUNDS // 4)

    def test_from_four_slots_to_two(self):
        self.restore_elsewhere((4, ()), (2, ()), True)

    def test_from_a_unified_memory_to_separate_ones(self):
        self.restore_elsewhere((4, ("-kvu", "--no-cache-idle-slots")), (4, ()), True)

    def test_to_a_server_that_transposes_v(self):
        # Its attention rounds differently, so the text need not be the same to the last word.
        self.restore_elsewhere((4, ()), (4, ("-fa", "off")), False)


if __name__ == "__main__":
    harness.main()
