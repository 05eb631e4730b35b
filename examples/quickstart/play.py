#!/usr/bin/env python3
"""Plays a short conversation of two agents through tokid and, request by request, to llama-servers
without it.

    play.py [--turns N] "tokid=URL" "NAME=URL" ...

All get the very same requests (the answers in the history are those of the first server named).
Printed is what each server reports of itself (`timings.cache_n`, reused; `timings.prompt_n`,
computed) and the time from sending a request to the first piece of its answer. Only Python's
standard library is needed.
"""

import argparse
import http.client
import json
import time
import urllib.parse

SYSTEM = """\
You are one of two colleagues who plan and review the work of a small software team. The team
maintains a command line program that reads measurements of rivers from text files, checks them,
and writes a report for every month. The program is ten years old. It was written by people who
have left, it has few tests, and it is used every day by three offices. Nobody may lose data
because of a change. These are the rules that both of you follow.

First, small steps: every change must be so small that one person can read it in ten minutes. A
change does one thing and says in one sentence why it is made. If a change needs a second
sentence, it is two changes. Second, tests before changes: whatever a change could break is
tested before it is made, with an input that was seen in real life, and the test must fail when
the change is wrong. Third, no surprises: a file that was accepted yesterday is accepted
tomorrow, and a report that was right stays the same to the last byte. If a report was wrong,
the new one says so on its first line. Fourth, honest messages: when the program refuses an
input it names the file, the line, what it found there and what it expected instead, in words
that somebody in one of the offices understands. Fifth, no new dependencies without need: the
program has to build on the oldest machine that any of the offices still uses. Sixth, speed is
not a goal of its own, but a report for a month must never take longer than a minute, even for
the largest river, with thirty stations and a value for every five minutes. Seventh, whoever
finds a mistake writes it down at once, with the input that shows it, even if there is no time
to repair it now.

Answer in plain words and in a few sentences. Say what you would do next, why, and how you would
know that it worked. Do not repeat what your colleague has already said. If you do not know
something, say so, and say how to find it out."""

# What each of them has on the desk: agents carry files, logs and results with them from turn to
# turn.
MATERIAL = {
    "planner": """\
Report from the northern office, received on Monday. The station at the old bridge was moved two
hundred meters down the river in the night of the fourth of March, because the bridge is being
rebuilt. It kept its number, 4711, since the number stands on every paper form. The height of
its zero point changed from 102.40 to 101.85 meters. The file for March therefore holds the
number twice, first with the old height and, from the fifth of March on, with the new one. The
program stops at line 1187 and says only: bad station. The clerk then removed all lines before
the fifth by hand, and the report for March now shows a monthly mean that is thirty centimeters
too low. Nobody noticed for two weeks. The clerk asks for three things: that the file is read as
it is, that the report names both places, and that the wrong report for March is marked as wrong
and made again. The head of the office adds that in autumn four more stations on the same river
will be moved, and that one of them will lie dry for about ten days, during which it sends the
value minus nine hundred and ninety nine. Lines 1185 to 1190 of the file:
4711;2024-03-04;23:50;102.40;1.12 and 4711;2024-03-04;23:55;102.40;1.13 and
4711;2024-03-05;00:00;101.85;1.66 and 4711;2024-03-05;00:05;101.85;1.67 and
4711;2024-03-05;00:10;101.85;1.67 and 4711;2024-03-05;00:15;101.85;1.68. The office keeps all
files since 1998.""",
    "reviewer": """\
Change request 88, two files, forty lines added and two hundred removed. The author writes: the
reader now loads the whole file into one string, splits it at line ends, and hands a list of
lines to the checks. Before, every check was called once for every line and had to remember by
itself what it had seen, which is why the check for gaps, the check for double times and the
check for jumps each keep a table of their own. With the list, each check is a loop over
neighbours. The largest file so far is that of the big river for the year 2021, nine million
lines and four hundred and ten megabytes. On the machine of the author the new program needs
half a minute for it, the old one twenty seconds. The author has not measured how much memory it
needs. There is one new test, which reads a file of five lines. The old tests pass, except for
one that expected the message for a missing line end in the middle of a file; the author deleted
it, because the new reader does not notice it any more. In the review so far somebody asked what
happens with line ends from the other operating system, and somebody else asked whether the list
could hold numbers instead of text. The author answered the first question with a change and has
not answered the second. The change has been waiting for nine days, and two other changes depend
on it.""",
}

AGENTS = {
    "planner": [
        "You are the planner. One office reports that the program refuses files in which a "
        "station has moved, because its number appears twice with different heights. Which "
        "small change would you make first, and which test would you write before it?",
        "The reviewer agrees with the test, but asks what happens to reports of past months, in "
        "which the old height was used for both places. How do you keep them the same to the "
        "last byte?",
        "Good. The office now sends a file with three places for one station, and the third has "
        "no height at all. Is that the same change or another one? Decide, and say what the "
        "program should print.",
        "The office asks when it can have the new program. Name what is left to do, in order.",
    ],
    "reviewer": [
        "You are the reviewer. A colleague proposes to read the whole file into memory before "
        "checking it, because the checks become simpler. The largest file has nine million "
        "lines. What do you ask before you say yes?",
        "The colleague answers that memory is cheap and that the oldest machine has two "
        "gigabytes. Is that enough for you? Say which measurement you want to see, on which "
        "input.",
        "The measurement came back: half a gigabyte, and twelve seconds instead of nine. The "
        "checks are now forty lines instead of two hundred. What do you decide, and what do you "
        "write in the review?",
        "Somebody found a file with a line of one million characters. What should the program "
        "do with it?",
    ],
}


class Server:
    """One way to the model, and what it reported so far."""

    def __init__(self, text):
        self.name, _, url = text.partition("=")
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port
        self.reused = self.computed = 0
        self.waited = 0.0

    def ask(self, messages, limit):
        """Streams one chat: (text, reused, computed, seconds to the first piece of text)."""
        body = json.dumps(
            {
                "model": "local",
                "messages": messages,
                "max_tokens": limit,
                "temperature": 0,
                "stream": True,
            }
        )
        connection = http.client.HTTPConnection(self.host, self.port, timeout=600)
        start, first, text, timings = time.monotonic(), None, "", {}
        connection.request(
            "POST", "/v1/chat/completions", body, {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"status {answer.status}: {answer.read().decode(errors='replace')}")
        for line in answer:
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            event = json.loads(line[5:])
            if "error" in event:
                raise SystemExit(f"error in the stream: {event['error']}")
            timings = event.get("timings") or timings
            for choice in event["choices"]:
                piece = choice["delta"].get("content")
                if first is None and (piece or choice.get("finish_reason")):
                    first = time.monotonic() - start
                text += piece or ""
        connection.close()
        return (
            text,
            timings.get("cache_n", 0),
            timings.get("prompt_n", 0),
            first or time.monotonic() - start,
        )

    def count(self, reused, computed, first):
        self.reused += reused
        self.computed += computed
        self.waited += first


def columns(reused, computed, first):
    return f"  {reused:>6,}{computed:>9,}{first:>8.2f} s"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3, choices=(1, 2, 3, 4))
    parser.add_argument("servers", nargs="+", type=Server, metavar="NAME=URL")
    options = parser.parse_args()
    servers = options.servers
    histories = {agent: [{"role": "system", "content": SYSTEM}] for agent in AGENTS}
    requests = 0

    def play(label, messages, limit):
        nonlocal requests
        # Each goes first in turn, so that none always meets a warm or a busy machine.
        start = requests % len(servers)
        requests += 1
        results = {
            server: server.ask(messages, limit) for server in servers[start:] + servers[:start]
        }
        for server, (_, *numbers) in results.items():
            server.count(*numbers)
        print(
            f" {label:<17}" + "".join(columns(*results[server][1:]) for server in servers),
            flush=True,
        )
        return results[servers[0]][0]

    print(f" {'':<17}" + "".join(f"  {' ' + server.name + ' ':-^25}" for server in servers))
    print(
        f" {'prompt tokens':<17}"
        + f"  {'reused':>6} {'computed':>8} {'1st token':>9}" * len(servers)
    )
    for turn in range(options.turns):
        for agent, questions in AGENTS.items():
            history = histories[agent]
            question = questions[turn] if turn else MATERIAL[agent] + "\n\n" + questions[turn]
            history.append({"role": "user", "content": question})
            answer = play(f"{agent}, turn {turn + 1}", history, 48)
            history.append({"role": "assistant", "content": answer})
            # What chat front ends send on the side, to the same model.
            play(
                "  a title for it",
                [
                    {
                        "role": "user",
                        "content": "Give this talk a title of at most four words:\n"
                        + questions[turn],
                    }
                ],
                8,
            )
    print(f" {'in all':<17}" + "".join(columns(s.reused, s.computed, s.waited) for s in servers))

    first, *others = servers
    print(
        f"\n {first.name} had {first.computed:,} prompt tokens computed, and waiting for the first token, "
        f"over {requests} requests, took {first.waited:.1f} s."
    )
    for other in others:
        share = other.computed / max(first.computed, 1)
        verdict = (
            f"{share:.1f} times as many"
            if share >= 1.05
            else "no more" if share >= 0.95 else "FEWER"
        )
        print(f" {other.name}: {other.computed:,} ({verdict}), and {other.waited:.1f} s.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except OSError as error:
        raise SystemExit(f"a server does not answer any more: {error}") from None
