"""Makes the manual page tokid(1) of docs/options.md: man_page.py OPTIONS.md VERSION > tokid.1"""

import re
import sys


def inline(text):
    """Code and stars become fonts, links their text; a dot that begins a line is none of roff's."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", text)
    text = re.sub(r"\*\*([^*]*)\*\*", r"\\fB\1\\fR", text)
    return "\\&" + text if text[:1] in (".", "'") else text


def cells(line):
    parts = re.split(r"(?<!\\)\|", line.strip().strip("|"))
    return [part.strip().replace("\\\\e|", "|") for part in parts]


def row(line, limits):
    head, *rest = cells(line)
    if re.fullmatch(r"[-\s]*", head):
        return []
    if limits:
        limit, then = rest
        rest = [f"{limit}." if limit not in ("", "none") else "", f"Then: {then}." if then else ""]
    elif len(rest) == 4:  # of the options
        default, values, reloaded, told = rest
        rest = [f"Default: {default}." if default not in ("", "none") else "",
                f"Values: {values}." if values else "", "SIGHUP changes it." if reloaded else "", told]
    return [".TP", inline(head), inline(" ".join(part for part in rest if part))]


def page(lines, version):
    out = [
        f'.TH TOKID 1 "" "toki {version}" "User Commands"',
        ".SH NAME",
        "tokid \\- recycles the KV caches of a llama\\-server",
        ".SH SYNOPSIS",
    ]
    in_table = limits = False
    paragraph = []  # code may go over the end of a line
    for line in [*(line.rstrip("\n") for line in lines[1:] if not line.startswith("<!--")), ""]:
        item = line.startswith("- ")
        plain = line != "" and not item and not line.startswith(("## ", "|", "    "))
        if plain:
            paragraph.append(line.strip())
            continue
        if paragraph:
            out.append(inline(" ".join(paragraph)))
            paragraph = []
        if item:
            out.append(".IP \\(bu 2")
            paragraph = [line[2:]]
        elif line.startswith("## "):
            out.append(f'.SH "{inline(line[3:].upper())}"')
        elif line.startswith("|"):
            limits = limits if in_table else line.startswith("| what |")
            out += row(line, limits) if in_table else []  # the first row is the head
        elif line.startswith("    "):
            out += [".nf", "\\fB" + inline(line[4:]) + "\\fR", ".fi"]
        else:
            described = ".SH DESCRIPTION" in out or len(out) <= 5
            out.append(".PP" if described else ".SH DESCRIPTION")
        in_table = line.startswith("|")
    return out + CLOSE


CLOSE = [
    ".SH FILES",
    ".TP",
    "\\fB/etc/toki/tokid.toml\\fR",
    "Settings of the service that the Debian package installs.",
    ".TP",
    "\\fB/var/lib/toki\\fR",
    "What it keeps.",
    ".SH SEE ALSO",
    "The pages that are named here in parentheses (http.md and others) lie in the folder docs of the sources.",
]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        print("\n".join(page(file.readlines(), sys.argv[2])))


main()
