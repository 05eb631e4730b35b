#!/usr/bin/env python3
"""Uses libtoki from Python, with nothing but ctypes.

    python_ctypes.py [LIBRARY]

LIBRARY is the path of libtoki.so; without it the one that is installed. First the tree alone: how much
of a prompt is known? Then an engine over a backend that is a Python class: a system prompt is pinned,
and two chats that begin with it reuse it. Only what is used here is declared; toki/toki.h has it all.
"""

import ctypes as c
import ctypes.util
import sys

OK, BUSY, CLASS_HIT, ENDING_COMPLETED = 0, 3, 0, 1
Token = c.c_int32
Tokens = c.POINTER(Token)


class Error(c.Structure):
    _fields_ = [("status", c.c_int32), ("message", c.c_char * 508)]


class Sized(c.Structure):
    """A struct of the API: its size comes first, all that is not named is zero."""

    def __init__(self, **members):
        super().__init__(size=c.sizeof(self), **members)


class Facts(Sized):
    _fields_ = [("size", c.c_size_t), ("slots", c.c_uint32), ("context", c.c_uint64),
                ("slots_empty", c.c_bool), ("slots_only", c.c_bool)]


class Query(Sized):
    _fields_ = [("size", c.c_size_t), ("scope", c.c_void_p), ("tokens", Tokens), ("count", c.c_size_t)]
    # What follows in toki.h is not needed here: a smaller struct counts as if zeros followed.


class Outcome(Sized):
    _fields_ = [("size", c.c_size_t), ("prompt_tokens", c.c_uint64), ("cached_tokens", c.c_int64),
                ("prompt_ms", c.c_double), ("generated", Tokens), ("generated_tokens", c.c_uint64),
                ("ending", c.c_int32), ("computed", c.c_bool), ("truncated", c.c_bool)]


class Account(Sized):
    _fields_ = [("size", c.c_size_t), ("predicted", c.c_uint64), ("reused", c.c_uint64),
                ("prompt", c.c_uint64), ("cache_class", c.c_int32)]


class Prefilled(Sized):
    _fields_ = [("size", c.c_size_t), ("cached", c.c_uint64), ("computed", c.c_uint64), ("ms", c.c_double)]


Prefill = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_uint32, Tokens, c.c_size_t, c.POINTER(Prefilled),
                      c.POINTER(Error))


class Table(Sized):
    _fields_ = [("size", c.c_size_t), ("user", c.c_void_p), ("prefill", Prefill), ("save", c.c_void_p),
                ("restore", c.c_void_p), ("erase", c.c_void_p)]


def array(tokens):
    return (Token * len(tokens))(*tokens)


class Toki:
    """The functions of the library; one that fails raises, with the library's own text."""

    def __init__(self, path):
        self.library = c.CDLL(path)

    def call(self, name, *arguments):
        error = Error()
        status = getattr(self.library, "toki_" + name)(*arguments, c.byref(error))
        if status != OK:
            raise RuntimeError(f"toki_{name}: {error.message.decode()}")

    def value(self, name, kind, *arguments):
        function = getattr(self.library, "toki_" + name)
        function.restype = kind
        return function(*arguments)


class Backend:
    """A model whose slots are lists of tokens."""

    def __init__(self, slots):
        self.slots = [[] for _ in range(slots)]
        self.prefill = Prefill(self._prefill)  # kept: C must not call what Python has thrown away

    def compute(self, slot, tokens):
        held = self.slots[slot]
        same = next((i for i, (a, b) in enumerate(zip(held, tokens)) if a != b), min(len(held), len(tokens)))
        self.slots[slot] = list(tokens)
        return same

    def _prefill(self, user, slot, tokens, count, done, error):
        done.contents.cached = self.compute(slot, tokens[:count])
        done.contents.computed = count - done.contents.cached
        return OK


def tree_alone(toki):
    tree = c.c_void_p()
    toki.call("tree_create", None, c.byref(tree))
    known, asked = array(range(100)), array([*range(80), 7, 7, 7])
    toki.call("tree_insert", tree, None, known, c.c_size_t(100), None)
    match = toki.value("tree_match", c.c_size_t, tree, None, asked, c.c_size_t(len(asked)))
    toki.value("tree_free", None, tree)
    return match


def serve(toki, engine, backend, tokens):
    """One request: how many of its tokens were reused."""
    prompt = array(tokens)
    query, ticket = Query(tokens=prompt, count=len(prompt)), c.c_void_p()
    toki.call("engine_begin", engine, c.byref(query), c.byref(ticket))
    slot = toki.value("ticket_slot", c.c_int32, ticket)
    toki.value("ticket_sent", None, ticket)
    cached = backend.compute(slot, tokens)
    outcome = Outcome(ending=ENDING_COMPLETED, prompt_tokens=len(tokens), cached_tokens=cached)
    account = Account()
    toki.call("ticket_finish", ticket, c.byref(outcome), c.byref(account))
    assert account.cache_class == CLASS_HIT and account.reused == cached
    return account.reused


def pinned_prompt(toki):
    backend, engine = Backend(slots=2), c.c_void_p()
    toki.call("engine_create", None, c.byref(engine))
    facts = Facts(slots=2, context=4096, slots_empty=True, slots_only=True)
    toki.call("engine_backend_changed", engine, c.byref(facts))
    system, pin = list(range(500)), c.c_uint64()
    toki.call("engine_pin", engine, None, array(system), c.c_size_t(500), c.byref(pin))
    toki.call("engine_serve_pins", engine, (c.c_void_p * 1)(None), c.c_size_t(1))
    table = Table(prefill=backend.prefill)
    toki.call("engine_run_chore", engine, c.byref(table), None, c.c_bool(False))
    reused = [serve(toki, engine, backend, system + [9000 + chat] * 20) for chat in range(2)]
    toki.value("engine_free", None, engine)
    return reused


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else ctypes.util.find_library("toki")
    if path is None:
        sys.exit("no libtoki.so where the loader looks: name it, PREFIX/lib/libtoki.so")
    try:
        toki = Toki(path)
    except OSError as error:
        sys.exit(f"this library does not load: {error}")
    print("libtoki", toki.value("version", c.c_char_p).decode())
    print("the tree knows", tree_alone(toki), "of 83 tokens")
    print("reused of the pinned system prompt:", *pinned_prompt(toki))


if __name__ == "__main__":
    main()
