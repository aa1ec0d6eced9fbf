#!/usr/bin/env python3
"""Compares the tables of built-in types with upstream's Go types: what a release has added, removed or renumbered.

usage: facts/fields.py DIRECTORY

DIRECTORY is a checkout of k8s.io/api (`staging/src/k8s.io/api` of Kubernetes' sources, or the repository of that name). Prints a
line for each difference of a type that a table has, and for each type of a version that has a table and that no table names.
Ends with 1 where fields differ. Nothing but Python is needed.
"""
import os
import re
import sys

TABLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "control", "src", "kinds", "types")
STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.M | re.S)
FIELD = re.compile(r'^\s+[^/\s].*`(.*)`', re.M)
NAME = re.compile(r'json:"([^,"]*)')
NUMBER = re.compile(r'protobuf:"\w+,(\d+),')


def upstream(path):
    """The structures of a file: for each the numbers of its fields, by name; empty without one."""
    with open(path) as file:
        text = file.read()
    found = {}
    for name, body in STRUCT.findall(text):
        fields = {}
        for tags in FIELD.findall(body):
            field, number = NAME.search(tags), NUMBER.search(tags)
            if field and field[1] not in ("", "-"):
                fields[field[1]] = number[1] if number else ""
        found[name] = fields
    return found


def ours(path):
    """The same of a table."""
    found, fields = {}, None
    with open(path) as file:
        for line in file.read().splitlines():
            if line.startswith("#") or not line:
                continue
            if not line.startswith("\t"):
                fields = found.setdefault(line.split("\t")[0], {})
                continue
            name, _, *cells = line[1:].split("\t")
            if name != "*":
                fields[name] = cells[0] if cells and cells[0].isdigit() else ""
    return found


def main(directory):
    differing = 0
    for table in sorted(os.listdir(TABLES)):
        package = table.removesuffix(".tsv").replace("_", "/")
        path = os.path.join(directory, package, "types.go")
        if not table.endswith(".tsv") or not os.path.exists(path):
            continue
        theirs, mine = upstream(path), ours(os.path.join(TABLES, table))
        for name in sorted(theirs.keys() - mine.keys()):
            print(f"{package}.{name}: no table has this type")
        for name in sorted(theirs.keys() & mine.keys()):
            for field in sorted(theirs[name].keys() | mine[name].keys()):
                now, before = theirs[name].get(field), mine[name].get(field)
                if now == before:
                    continue
                differing += 1
                what = f"added, {now}" if before is None else "gone" if now is None else f"number {before!r} is {now!r}"
                print(f"{package}.{name}.{field}: {what}")
    print(f"{differing} fields differ")
    return 1 if differing else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    sys.exit(main(sys.argv[1]))
