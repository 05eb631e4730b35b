"""The dashboard at /toki/ in a real browser, in front of a real llama-server.

    dashboard.py                   the tests
    dashboard.py --pictures DIR    writes what the page looks like, in four PNG files
"""

import os
import sys

import browser
import harness
from harness import call, get, in_parallel, post, words

harness.require_parts()
browser.require_chromium()


class Rig(harness.TestCase):
    """llama-server, tokid with a store, and what some agents asked it."""

    slots = 4

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        slot_dir = os.path.join(cls.folder, "shared-slots")
        os.makedirs(slot_dir)
        cls.llama = cls.start_llama(
            slots=cls.slots, extra=["--slot-save-path", slot_dir, "--cache-ram", "0"]
        )
        cls.tokid = cls.start_tokid(
            backend=cls.llama.url, options=["--slot-dir", slot_dir, "--kv-gib", "1"]
        )
        cls.browser = browser.Browser(cls.folder)
        cls.addClassCleanup(cls.browser.close)

    @classmethod
    def chat(cls, system, *turns, **more):
        messages = [{"role": "system", "content": words(*system)}]
        for at, turn in enumerate(turns):
            messages.append({"role": "assistant" if at % 2 else "user", "content": turn})
        body = {"messages": messages, "temperature": 0, "max_tokens": 4, **more}
        return post(cls.tokid.url + "/v1/chat/completions", body)

    def open(self, **more):
        self.browser.look_like(**{"width": 1280, "height": 900, "still": True, **more})
        self.browser.open(self.tokid.url + "/toki/")
        self.browser.wait("document.getElementById('state').classList.contains('ready')", "ready")

    def text(self, selector):
        return self.browser.run(f"document.querySelector({selector!r}).textContent")

    def click(self, selector):
        """When it is there, and can be used."""
        usable = "(e) => e !== null && !e.disabled && e.offsetParent !== null"
        self.browser.wait(f"({usable})(document.querySelector({selector!r}))", selector)
        self.browser.run(f"document.querySelector({selector!r}).click()")

    def confirm(self):
        self.browser.wait("document.getElementById('ask').open", "the question")
        self.browser.run("document.getElementById('ask-yes').click()")

    @classmethod
    def agents(cls):
        """Four kinds of conversations that begin alike, and some that do not."""
        for agent, turns in ((("a", 400), 5), (("b", 700), 4), (("c", 150), 3)):
            system = (agent[1], f"system {agent[0]}")
            for conversation in range(turns):
                first = words(20 + 25 * conversation, f"{agent[0]} question {conversation}")
                cls.chat(system, first).ok()
                if conversation % 2 == 0:
                    cls.chat(system, first, words(30, "answer"), words(40, "again")).ok()
        for alone in range(3):
            cls.chat((60 + 200 * alone, f"alone {alone}"), "And now?").ok()
        cls.tokid.settled_stats()


class Dashboard(Rig):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.agents()

    def setUp(self):
        self.dashboard = self.tokid.url + "/toki/"

    def check_quiet(self):
        """Nothing was said on the console, and nobody but tokid was asked."""
        self.browser.run("0")
        self.assertEqual(self.browser.errors, [])
        for url in self.browser.requests:
            self.assertTrue(url.startswith((self.tokid.url + "/toki/", "data:")), url)

    def pins(self):
        return get(self.tokid.url + "/toki/pins").ok()["pins"]

    def wait_rows(self, selector, count):
        self.browser.wait(
            f"document.querySelectorAll({selector!r}).length === {count}", f"{count} {selector}"
        )

    def wait_text(self, selector, text):
        self.browser.wait(
            f"document.querySelector({selector!r}).textContent.includes({text!r})",
            f"{text} in {selector}",
        )

    def test_shows_what_was_asked(self):
        self.open()
        requests = get(self.tokid.url + "/toki/requests").ok()["requests"]
        shown = "document.querySelectorAll('#request-rows tr').length"
        self.assertEqual(self.browser.run(shown), min(len(requests), 12))
        self.click("#more")
        self.assertEqual(self.browser.run(shown), len(requests))
        newest = self.browser.run(
            "[...document.querySelector('#request-rows tr').children].map((c) => c.textContent)"
        )
        self.assertEqual(newest[1], "chat")
        self.assertEqual(newest[2].replace(" ", "_"), requests[0]["class"])
        self.assertEqual(newest[4].replace(" ", "_"), requests[0]["reason"])
        self.assertEqual(newest[6].replace(",", ""), str(requests[0]["prompt_tokens"]))
        self.assertEqual(newest[7].replace(",", ""), str(requests[0]["reused_tokens"]))
        self.assertEqual(newest[8].replace(",", ""), str(requests[0]["known_tokens"]))
        self.assertEqual(self.browser.run("document.querySelectorAll('#slot-rows tr').length"), 4)
        prompts = get(self.tokid.url + "/toki/tree").ok()["prompts"]
        leaves = "document.querySelectorAll('#family .node:has(.own)').length"
        self.assertEqual(self.browser.run(leaves), len(prompts))
        stats = self.tokid.stats()
        share = int(100 * stats["reused_tokens_total"] / stats["prompt_tokens_total"])
        self.assertEqual(self.text("#share"), f"{share} %")
        self.check_quiet()

    def test_a_new_request_comes_up_by_itself_and_no_text_of_it_is_shown(self):
        self.open()
        newest = "Number(document.querySelector('#request-rows tr').dataset.key)"
        before = self.browser.run(newest)
        self.chat((80, "unseen"), "Xylophone <b>quokka</b> zeppelin?").ok()
        self.browser.wait(f"{newest} > {before}", "the new request")
        text = self.browser.run("document.documentElement.outerHTML").lower()
        overview = get(self.tokid.url + "/toki/overview").body.decode().lower()
        for word in ("xylophone", "quokka", "zeppelin"):
            self.assertNotIn(word, text)
            self.assertNotIn(word, overview)
        self.check_quiet()

    def test_pins_and_unpins(self):
        self.open()
        self.wait_rows("#pin-rows tr", 0)
        self.click("#hot-rows button")
        self.wait_rows("#pin-rows tr", 1)
        made = self.pins()
        self.assertEqual(len(made), 1)
        # The list of pins may come before the answer to the button.
        self.wait_text("#said", f"{made[0]['tokens']:,} tokens are pinned")
        self.wait_text("#pin-rows", "in slot")
        self.wait_text("#hot-rows", "Unpin")
        self.click("#pin-rows button")
        self.wait_rows("#pin-rows tr", 0)
        self.assertEqual(self.pins(), [])
        self.check_quiet()

    def test_everything_is_done_by_keyboard(self):
        self.open()
        order = []
        focused = "document.activeElement"
        for _ in range(30):
            self.browser.press("Tab", 9)
            if self.browser.run(f"{focused} === document.body"):
                break
            order.append(self.browser.run(f"{focused}.id || {focused}.textContent"))
            outline = self.browser.run(f"getComputedStyle({focused}).outlineStyle")
            self.assertNotEqual(outline, "none", order)
        self.assertEqual(order[:3], ["flush", "forget", "family"])
        self.assertIn("Pin", order)
        self.assertIn("more", order)
        self.browser.run("document.getElementById('family').focus()")
        for _ in range(2):
            self.browser.press("ArrowRight", 39)
        chosen = self.browser.run(
            "document.getElementById(document.getElementById('family')"
            ".getAttribute('aria-activedescendant')).getAttribute('aria-label')"
        )
        self.assertEqual(chosen.split(".")[0], self.text("#chosen").split(".")[0])
        self.browser.press("Tab", 9)
        self.assertEqual(self.browser.run("document.activeElement.id"), "chosen-pin")
        self.browser.press("Enter", 13)
        self.wait_rows("#pin-rows tr", 1)
        self.assertEqual(self.browser.run("document.activeElement.id"), "chosen-pin")
        self.browser.run("document.querySelector('#pin-rows button').focus()")
        self.browser.press("Enter", 13)
        self.wait_rows("#pin-rows tr", 0)
        self.assertEqual(self.browser.run("document.activeElement.id"), "pins-title")
        self.check_quiet()

    def test_flush_and_forget_ask_first(self):
        self.open()
        known = get(self.tokid.url + "/toki/tree").ok()["total"]
        opened = "document.getElementById('ask').open"
        self.click("#forget")
        self.assertTrue(self.browser.run(opened))
        self.browser.press("Escape", 27)
        self.browser.wait(f"!{opened}", "the dialog is closed")
        self.click("#forget")
        self.browser.run("document.getElementById('ask-no').click()")
        self.assertEqual(get(self.tokid.url + "/toki/tree").ok()["total"], known)
        self.click("#flush")
        self.confirm()
        self.wait_text("#said", "saved")
        self.check_quiet()

    def test_a_question_that_was_declined_is_not_answered_by_the_next_one(self):
        self.open()
        known = get(self.tokid.url + "/toki/tree").ok()["total"]
        # All in one turn: the browser tells of closed dialogs only after it.
        self.browser.run(
            "for (const id of ['forget', 'ask-no', 'flush', 'ask-yes'])"
            " document.getElementById(id).click()"
        )
        self.wait_text("#said", "saved")
        self.assertEqual(get(self.tokid.url + "/toki/tree").ok()["total"], known)
        self.assertNotIn("DELETE", self.browser.methods)
        self.check_quiet()

    def test_fits_narrow_screens_in_both_themes(self):
        papers = set()
        for dark in (False, True):
            for width in (400, 320, 768, 905, 1280):
                self.open(width=width, dark=dark)
                self.assertLessEqual(
                    self.browser.run("document.documentElement.scrollWidth"), width, f"{width} px"
                )
                papers.add(self.browser.run("getComputedStyle(document.body).backgroundColor"))
                self.check_quiet()
        self.assertEqual(len(papers), 2)
        self.assertEqual(
            self.browser.run(
                "getComputedStyle(document.querySelector('.bar i')).transitionDuration"
            ),
            "0s",
        )

    def test_the_policy_holds(self):
        self.open()
        reached = f"fetch({self.llama.url + '/health'!r}).then(() => true, () => false)"
        self.assertFalse(self.browser.run(reached))
        self.browser.run(
            "document.body.append(Object.assign(document.createElement('script'),"
            " {textContent: 'window.broken = true'}))"
        )
        self.assertFalse(self.browser.run("window.broken === true"))

    def test_says_when_nothing_is_heard_any_more(self):
        tokid = type(self).start_tokid(backend=self.llama.url, name="other")
        self.browser.look_like(1280, 900)
        self.browser.open(tokid.url + "/toki/")
        self.browser.wait("document.getElementById('state').textContent === 'ready'", "ready")
        tokid.stop()
        self.browser.wait("!document.getElementById('stale').hidden", "it is noticed")
        self.assertIn("No answer since", self.text("#stale-text"))
        self.assertEqual(self.text("#state"), "no answer")
        self.assertTrue(self.browser.run("document.getElementById('forget').disabled"))


def write_pictures(folder):
    os.makedirs(folder, exist_ok=True)
    rig = Rig()
    try:
        Rig.setUpClass()
        rig.agents()
        call("POST", rig.tokid.url + "/toki/flush").ok()
        in_parallel([lambda n=n: rig.chat((400, "system a"), f"Together {n}?") for n in range(6)])
        rig.chat((9000, "far too long"), "Does this fit?")
        rig.chat((400, "system a"), "No reuse, please.", cache_prompt=False).ok()
        tree = get(rig.tokid.url + "/toki/tree").ok()["prompts"]
        shared = max(tree, key=lambda prompt: prompt["common"])
        post(
            rig.tokid.url + "/toki/pins", {"prompt": shared["id"], "length": shared["common"]}
        ).ok()
        rig.tokid.stats_when(lambda stats: stats["pins_held"] == 1, "the pin is held", 60)
        for dark in (False, True):
            for name, width in (("wide", 1280), ("narrow", 400)):
                rig.open(width=width, dark=dark)
                rig.browser.run("document.getElementById('family').focus()")
                for _ in range(2):
                    rig.browser.press("ArrowRight")
                rig.browser.run("document.getElementById('family').blur()")
                path = os.path.join(folder, f"{name}-{'dark' if dark else 'light'}.png")
                rig.browser.picture(path)
                print(path)
    finally:
        Rig.doClassCleanups()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--pictures"]:
        write_pictures(sys.argv[2])
    else:
        harness.main()
