#!/usr/bin/env python3
"""docs.py [--fix]: does what the documentation says fit the files beside it? Nothing is fetched.

- A fenced block behind `<!-- from FILE -->` is the text of FILE; behind `<!-- from FILE#PART -->` the
  lines between the comments `[PART]` and `[/PART]` there. --fix writes such blocks anew. C, C++ and
  Python are only shown in such blocks, so that all of it is compiled or run by a test.
- Relative links lead to files, and their #anchors to headings.
- Options are ones that tokid has (docs/options.md), or another program that is named here.
- Paths of this repository exist; so do the pages that comments in the sources name.
- No page holds a tabulator or trailing white space.

docs.py --self-test plants one fault of each kind in a small tree and checks that each is found.
"""
import os
import re
import subprocess
import sys
import tempfile

MARK = re.compile(r"<!-- from ([^\s#]+)(?:#([\w-]+))? -->$")
FENCE = re.compile(r"(```+)\s*(\w*)")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
PATH = re.compile(r"(?<![\w/.~-])(?:tests|docs|examples|libtoki|include|tokid|benchmarks|packaging)/[\w./-]*\w")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
FROM_FILES = {"c", "cpp", "c++", "python", "py"}
# Of llama-server and of the programs in examples, tests and benchmarks; toki-replay's are read from its source.
OTHERS = set("""
--alias --api-key --batch-size --cache-ram --cache-reuse --cache-idle-slots --embeddings --flash-attn --gpu-layers
--component --help --host --kv-unified --metrics --mmproj --models-dir --no-cache-idle-slots --no-mmap --parallel --poll --pooling --port
--slot-prompt-similarity --slot-save-path --slots --swa-full --version
--clients --dev --hnsw --keep --prefix --minutes --mooncake --only --report --rounds --size --tiny --write
""".split())


class Docs:
    def __init__(self, root):
        self.root = root
        self.faults = []
        self.pages = [p for p in self.files() if p.endswith(".md")]
        self.anchors = {}
        self.tokid = set(re.findall(r"^\| `(--[a-z-]+)", self.read("docs/options.md"), re.M))
        self.tokid |= {"--help", "--version"}
        replay = self.read("benchmarks/replay/options.cpp") if self.is_file("benchmarks/replay/options.cpp") else ""
        self.known = self.tokid | OTHERS | set(OPTION.findall(replay))

    def files(self):
        if os.path.isdir(os.path.join(self.root, ".git")) or os.path.isfile(os.path.join(self.root, ".git")):
            listed = subprocess.run(["git", "-C", self.root, "ls-files", "-co", "--exclude-standard"], check=True,
                                    capture_output=True, text=True).stdout.split("\n")
            return sorted({f for f in listed if f and self.is_file(f)})
        return sorted(os.path.relpath(os.path.join(folder, name), self.root)
                      for folder, folders, names in os.walk(self.root) for name in names)

    def path(self, name):
        return os.path.join(self.root, name)

    def is_file(self, name):
        return os.path.isfile(self.path(name))

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def fault(self, page, line, text):
        self.faults.append(f"{page}:{line}: {text}")

    # --- what is shown

    def shown(self, name, part):
        """The lines that a block stands for, or what is wrong."""
        if not self.is_file(name):
            return None, f"there is no {name}"
        lines = self.read(name).rstrip("\n").split("\n")
        tag = re.compile(r"^\s*(?://|#|/\*) \[(/?)([\w-]+)\](?: \*/)?$")
        if part is None:
            return [line for line in lines if not tag.match(line)], None
        begin = end = None
        for at, line in enumerate(lines):
            found = tag.match(line)
            if found and found[2] == part:
                begin, end = (begin, at) if found[1] else (at + 1, end)
        if begin is None or end is None or end < begin:
            return None, f"{name} has no part [{part}]"
        lines = [line for line in lines[begin:end] if not tag.match(line)]
        margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        return [line[margin:] for line in lines], None

    def blocks(self, page, fix):
        lines = self.read(page).rstrip("\n").split("\n")
        out, at, changed = [], 0, False
        while at < len(lines):
            fence = FENCE.match(lines[at])
            out.append(lines[at])
            at += 1
            if not fence:
                continue
            start = at
            while at < len(lines) and lines[at] != fence[1]:
                at += 1
            if at == len(lines):
                self.fault(page, start, "this block has no end")
                out += lines[start:]
                break
            inside, marked = lines[start:at], MARK.match(lines[start - 2]) if start > 1 else None
            if marked:
                wanted, wrong = self.shown(marked[1], marked[2])
                if wrong:
                    self.fault(page, start, wrong)
                elif inside != wanted:
                    if fix:
                        inside, changed = wanted, True
                    else:
                        self.fault(page, start, f"the block differs from {marked[1]}: tests/docs.py --fix")
            elif fence[2] in FROM_FILES:
                self.fault(page, start, f"{fence[2]} that is in no file: put <!-- from FILE --> before it")
            out += inside + [lines[at]]
            at += 1
        if changed:
            with open(self.path(page), "w", encoding="utf-8") as file:
                file.write("\n".join(out) + "\n")

    # --- what is linked and named

    @staticmethod
    def plain(text):
        """Without fenced and indented blocks, line by line as before."""
        out, fence, before = [], None, ""
        for line in text.split("\n"):
            found = FENCE.match(line)
            if fence:
                fence = None if line == fence else fence
                out.append("")
            elif found:
                fence = found[1]
                out.append("")
            else:
                code = line.startswith("    ") and (not before.strip() or before.startswith("    "))
                code = code and not re.match(r"\s+[-*|]", line)
                out.append("" if code else line)
            before = line
        return out

    def anchors_of(self, page):
        if page not in self.anchors:
            seen, names = {}, set()
            for line in self.plain(self.read(page)):
                heading = re.match(r"#{1,6} (.*)", line)
                if heading:
                    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
                    name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
                    seen[name] = seen.get(name, -1) + 1
                    names.add(name if seen[name] == 0 else f"{name}-{seen[name]}")
            self.anchors[page] = names
        return self.anchors[page]

    def links(self, page):
        for number, line in enumerate(self.plain(self.read(page)), 1):
            for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
                if re.match(r"(https?|mailto):", target):
                    continue
                name, _, anchor = target.partition("#")
                file = os.path.normpath(os.path.join(os.path.dirname(page), name)) if name else page
                if not os.path.exists(self.path(file)):
                    self.fault(page, number, f"the link {target} leads nowhere")
                elif anchor and (not file.endswith(".md") or anchor not in self.anchors_of(file)):
                    self.fault(page, number, f"the link {target}: {file} has no heading #{anchor}")

    def names(self, page):
        for number, line in enumerate(self.read(page).split("\n"), 1):
            if line != line.rstrip() or "\t" in line:
                self.fault(page, number, "trailing white space, or a tabulator")
            for name in PATH.findall(line):
                if not any(os.path.exists(self.path(name + end)) for end in ("", ".cpp", ".hpp")):
                    self.fault(page, number, f"there is no {name}")
            command = re.match(r"(?:    |\s+\$ )(?:sudo )?tokid (-.*)", line)
            if command:
                for option in OPTION.findall(re.split(r" -- | --$|\||#", command[1])[0]):
                    if option not in self.tokid:
                        self.fault(page, number, f"tokid has no option {option} (docs/options.md)")
            for span in re.findall(r"`(--[^`]*)`", line):
                for option in OPTION.findall(span):
                    if option not in self.known:
                        self.fault(page, number, f"nobody has an option {option} (docs/options.md, tests/docs.py)")

    def comments(self):
        for name in self.files():
            if not name.endswith((".cpp", ".hpp", ".h", ".c", ".py", ".sh", ".txt", ".cmake", ".dox", ".service", ".toml")):
                continue
            if name == "tests/docs.py":
                continue
            for number, line in enumerate(self.read(name).split("\n"), 1):
                for page in re.findall(r"(?<![\w/])docs/[\w./-]+\.md", line):
                    if not self.is_file(page):
                        self.fault(name, number, f"there is no {page}")

    def check(self, fix=False):
        for page in self.pages:
            self.blocks(page, fix)
            self.links(page)
            self.names(page)
        self.comments()
        return self.faults


GOOD = {
    "docs/options.md": "# Options\n\n| `--kv-gib N` | 32 | disk |\n\n## Two words, `code`\n\n## Two words, `code`\n",
    "examples/a.cpp": "int a;\n// [part]\n  int b;\n    int c;\n// [/part]\n",
    "README.md": "# A\n\nSee [options](docs/options.md#two-words-code-1) and `docs/options.md`, `--kv-gib 3`, `--swa-full`.\n\n"
                 "    tokid --kv-gib 3 -- llama-server --anything\n\n"
                 "<!-- from examples/a.cpp -->\n```cpp\nint a;\n  int b;\n    int c;\n```\n\n"
                 "<!-- from examples/a.cpp#part -->\n```cpp\nint b;\n  int c;\n```\n\n```text\n[no](link.md)\n```\n",
    "libtoki/a.cpp": "// docs/options.md says why\n",
}
FAULTS = [  # file, text, what is put in its place, what is said
    ("README.md", "(docs/options.md#two-words-code-1)", "(docs/option.md)", "leads nowhere"),
    ("README.md", "#two-words-code-1", "#two-words-code-2", "no heading"),
    ("README.md", "#two-words-code-1", "#Two-words-code", "no heading"),
    ("README.md", "`docs/options.md`", "`docs/option.md`", "there is no docs/option.md"),
    ("README.md", "`--kv-gib 3`", "`--kv-gb 3`", "nobody has an option --kv-gb"),
    ("README.md", "tokid --kv-gib", "tokid --swa-full", "tokid has no option --swa-full"),
    ("README.md", "  int b;\n    int c;\n```", "  int b;\n    int d;\n```", "differs from examples/a.cpp"),
    ("README.md", "int b;\n  int c;\n```", "int b;\n```", "differs from examples/a.cpp"),
    ("README.md", "a.cpp#part", "a.cpp#other", "no part [other]"),
    ("README.md", "<!-- from examples/a.cpp -->", "<!-- from examples/b.cpp -->", "there is no examples/b.cpp"),
    ("README.md", "<!-- from examples/a.cpp -->\n", "", "cpp that is in no file"),
    ("README.md", "link.md)\n```\n", "link.md)\n", "has no end"),
    ("README.md", "See", "See\t", "tabulator"),
    ("examples/a.cpp", "int a;", "int e;", "differs from examples/a.cpp"),
    ("libtoki/a.cpp", "options.md", "option.md", "there is no docs/option.md"),
]


def self_test():
    def tree(folder, files):
        for name, text in files.items():
            os.makedirs(os.path.join(folder, os.path.dirname(name)), exist_ok=True)
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        return folder

    failed = []
    with tempfile.TemporaryDirectory() as folder:
        found = Docs(tree(folder, GOOD)).check()
        if found:
            failed.append(f"a good tree has faults: {found}")
        for name, text, instead, said in FAULTS:
            assert text in GOOD[name], (name, text)
            tree(folder, {**GOOD, name: GOOD[name].replace(text, instead, 1)})
            found = Docs(folder).check()
            if not any(said in fault for fault in found):
                failed.append(f"{name}: '{instead}' is not found ({said}): {found}")
        tree(folder, {**GOOD, "examples/a.cpp": GOOD["examples/a.cpp"].replace("int c", "int new_c")})
        Docs(folder).check(fix=True)
        if Docs(folder).check():
            failed.append("--fix does not write blocks anew")
    for text in failed:
        print("docs self-test:", text)
    return not failed


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 0 if self_test() else 1
    if sys.argv[1:] not in ([], ["--fix"]):
        print(__doc__)
        return 2
    if not self_test():
        return 1
    docs = Docs(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    faults = docs.check(fix=sys.argv[1:] == ["--fix"])
    for fault in faults:
        print(fault)
    if faults:
        print(f"docs: {len(faults)} faults")
        return 1
    print(f"docs: {len(docs.pages)} pages hold no dead link, no code of their own and no option that is not there; "
          f"{len(FAULTS)} planted faults were found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
