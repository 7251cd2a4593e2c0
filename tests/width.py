"""Finds lines of documents and of Rust's comments that are longer than 120 characters.

Rows of tables are exempt, since Markdown cannot break them; so is text that is not ours.
"""

import re
import subprocess
import sys

LONGEST = 120


def tracked():
    names = subprocess.run(["git", "ls-files", "*.md", "*.rs"], capture_output=True, text=True, check=True)
    return [name for name in names.stdout.splitlines() if "/vendor/" not in name]


def is_counted(name, line):
    if name.endswith(".md"):
        return not line.lstrip().startswith("|")
    return re.match(r"\s*//", line) is not None


def main():
    wrong = []
    for name in tracked():
        with open(name, encoding="utf-8") as file:
            for number, line in enumerate(file.read().splitlines(), 1):
                if len(line) > LONGEST and is_counted(name, line):
                    wrong.append(f"{name}:{number}: {len(line)} characters; at most {LONGEST}")
    print("\n".join(wrong) or "no line is too long")
    sys.exit(1 if wrong else 0)


main()
