#!/usr/bin/env python3
"""The functions of the shipped program that run, and in which order they are linked.

usage: function_order.py match OBJECT            the symbols of an object that packaging/function-order.txt names, for lld
       function_order.py record OBJECT TRACE…    that file, of the functions in outputs of callgrind (--demangle=no)

A line of the file is a hash of a function's name without what differs between two compilers or machines: with its types, as
`nm --demangle` prints it. A change of the sources leaves nearly all of them as they are.
"""

import hashlib
import os
import re
import subprocess
import sys

LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "packaging", "function-order.txt")
HEAD = """# Functions that run, in the order in which they are linked: hashes of their names, by `make function-order`.
"""


def functions(object_file):
    """Symbols of code with the hashes of their names."""

    def names(*flags):
        listed = subprocess.run(["nm", "--no-sort", "--format=posix", *flags, object_file], capture_output=True, check=True, text=True)
        return [line.rsplit(" ", 3) for line in listed.stdout.splitlines()]

    for (symbol, kind, *_), (name, *_) in zip(names(), names("--demangle"), strict=True):
        if kind in "tT":
            # What the optimizer adds to the names of what it shares between modules.
            name = re.sub(r"\s*[\[(]?(clone )?\.llvm\.\d+[\])]?$", "", name)
            yield symbol, hashlib.blake2b(name.encode(), digest_size=6).hexdigest()


def match(object_file):
    with open(LIST, encoding="ascii") as lines:
        wanted = [line.strip() for line in lines if not line.startswith("#")]
    symbols = {}
    for symbol, digest in functions(object_file):
        symbols.setdefault(digest, []).append(symbol)
    for digest in wanted:
        for symbol in symbols.get(digest, []):
            print(symbol)
    found = sum(digest in symbols for digest in wanted)
    print(f"{found} of {len(wanted)} functions that run lie together", file=sys.stderr)


def record(object_file, traces):
    digests = dict(functions(object_file))
    seen = {}
    for trace in traces:
        with open(trace, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                # Each name stands once, where it is first used.
                found = re.match(r"c?fn=\(\d+\) (.*?)('\d+)?$", line)
                if found and found[1] in digests:
                    seen[digests[found[1]]] = None
    print(HEAD + "\n".join(seen))
    print(f"{len(seen)} of {len(digests)} functions run", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "match":
        match(sys.argv[2])
    elif len(sys.argv) > 3 and sys.argv[1] == "record":
        record(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(__doc__)
