#!/usr/bin/env python3
"""Prints the licences of all crates that are part of the program: each text once, with the names of who has it.

Most of them ask for that wherever the program goes. Reads what cargo has fetched already, without the network."""

import json
import pathlib
import subprocess
import sys

metadata = json.loads(
    subprocess.check_output(
        ["cargo", "metadata", "--format-version=1", "--offline", "--locked",
         "--filter-platform", "x86_64-unknown-linux-gnu"],
    )
)
packages = {package["id"]: package for package in metadata["packages"]}
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}

# What the program is linked from: dependencies of dependencies, without those of tests and build scripts.
start = next(p["id"] for p in metadata["packages"] if p["name"] == "windlass")
reached, ahead = set(), [start]
while ahead:
    one = ahead.pop()
    if one in reached:
        continue
    reached.add(one)
    for dependency in nodes[one]["deps"]:
        if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
            ahead.append(dependency["pkg"])

texts, without = {}, []
for package in sorted((packages[one] for one in reached), key=lambda p: (p["name"], p["version"])):
    if package["source"] is None:
        continue
    who = f'{package["name"]} {package["version"]} ({package["license"]})'
    folder = pathlib.Path(package["manifest_path"]).parent
    files = sorted(
        path for path in folder.iterdir()
        if path.is_file() and path.name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"))
    )
    if not files:
        without.append(who)
    for path in files:
        text = "\n".join(line.rstrip() for line in path.read_text("utf-8", "replace").strip().splitlines())
        texts.setdefault(text, []).append(who)

if len(texts) < 10:
    sys.exit(f"notices.py: only {len(texts)} texts of licences were found; is everything fetched?")
print("Windlass contains the crates below, each under the licence that it comes with.")
for text, names in sorted(texts.items(), key=lambda item: item[1][0]):
    print("\n" + "=" * 100)
    print("\n".join(dict.fromkeys(names)))
    print("=" * 100 + "\n\n" + text)
if without:
    print("\n" + "=" * 100 + "\nThese say their licence by name alone:\n" + "\n".join(without))
