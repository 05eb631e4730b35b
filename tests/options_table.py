#!/usr/bin/env python3
"""options_table.py TOKID [--fix]: the table of options in docs/options.md, generated from `TOKID --help`.

An option's name, its default, the values it takes and whether SIGHUP changes it are the program's; only
the last column is written by hand, and the default where the program has none of its own. Rows keep
their order. --fix writes the page anew, with the help's text for options that have no row; without it
the page must be what --fix would write. A page with a planted fault must differ, each time.
"""
import os
import re
import subprocess
import sys

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "options.md")
HEAD = ["| option | default | values | SIGHUP | what it does |", "|---|---|---|---|---|"]
LAST = "| `--help`, `--version` | | | | |"
OPTION = re.compile(r"  --([a-z-]+)(?: ([A-Z]+(?:=URL)?))?(?::(\{[^}]*\}|from \S+ to [^=\s]+))?(?:=(\S*))?(?: \.\.\.)?(?: \(Env:\w+\))?$")
RELOADED = " [SIGHUP]"


def read_help(tokid):
    """By option: the cells that are the program's, and its text."""
    text = subprocess.run([tokid, "--help"], check=True, capture_output=True, text=True,
                          env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"}).stdout
    lines, options = text.split("\n"), {}
    for at, line in enumerate(lines):
        if not line.startswith("  --") or line.split()[0] == "--version":
            continue
        # The text follows in the next line, or in this one where the name is short.
        wide = re.match(r"(  --\S.*?)\s{2,}(\S.*)$", line)
        name_part, told = (wide[1], wide[2]) if wide else (line.rstrip(), lines[at + 1].strip())
        found = OPTION.match(name_part)
        if not found:
            sys.exit(f"options_table.py: cannot read this line of --help: {line}")
        name, metavariable, values, default = found.groups()
        values = values or ""
        if values.startswith("{"):
            values = ", ".join(f"`{value}`" for value in values[1:-1].split(","))
        default = (default or "").strip("[]")
        if metavariable is None:
            default = "" if name == "check-config" else "off"
        elif metavariable not in ("N", "X") and default:
            default = f"`{default}`"
        reloaded = told.endswith(RELOADED)
        options[name] = {
            "option": f"`--{name}{' ' + metavariable if metavariable else ''}`",
            "default": default,
            "values": values.removeprefix("from "),
            "reloaded": "yes" if reloaded else "",
            "told": told.removesuffix(RELOADED).replace("|", "\\|"),
        }
    return options


def generated(page, options):
    """The page with its table as it should be."""
    lines = page.split("\n")
    begin = next(i for i, line in enumerate(lines) if line.startswith("| option | default |"))
    end = next(i for i in range(begin, len(lines)) if not lines[i].startswith("|"))
    by_hand = {}
    for line in lines[begin + 2:end]:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        name = re.match(r"`--([a-z-]+)", cells[0])[1]
        by_hand[name] = (cells[1], cells[-1])
    rows = []
    for name in [name for name in by_hand if name in options] + [name for name in options if name not in by_hand]:
        option = options[name]
        default, told = by_hand.get(name, ("none", option["told"]))
        cells = [option["option"], option["default"] or (default if name != "check-config" else ""),
                 option["values"], option["reloaded"], told]
        rows.append("".join(f"| {cell} " if cell else "| " for cell in cells) + "|")
    return "\n".join(lines[:begin] + HEAD + rows + [LAST] + lines[end:])


def self_test(page, options):
    faults = [("| 32 |", "| 33 |"), ("0 to 1048576", "0 to 9"), ("| `comment` |", "| `line` |"),
              ("| yes |", "| |"), ("| `--kv-gib N` |", "| `--kv-gigabytes N` |"),
              ("| `--kv-gib N` |", "| `--kv-gib MIB` |")]
    for right, wrong in faults:
        planted = page.replace(right, wrong, 1)
        if planted == page or generated(planted, options) == planted:
            sys.exit(f"options_table.py: with {wrong} instead of {right} it finds nothing")


def main():
    options = read_help(sys.argv[1])
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    wanted = generated(page, options)
    if "--fix" in sys.argv[2:]:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(wanted)
        page = wanted
    if page != wanted:
        sys.exit("docs/options.md is not what --help says: tests/options_table.py TOKID --fix")
    self_test(page, options)
    print(f"options: the rows of {len(options)} options are as --help says")


if __name__ == "__main__":
    main()
