"""A test's file with the functions and tables in it."""
import os

from .evaluate import Evaluator, Scope
from .model import TREE, Package, Struct, Unknown, get, rows as dictionaries, to_json

__all__ = ["Scope", "Struct", "Test", "Unknown", "dictionaries", "get", "to_json", "within"]


def within(tree, what):
    """All parts of a syntax tree that are of a kind."""
    if isinstance(tree, tuple) and tree and tree[0] == what:
        yield tree
    if isinstance(tree, (tuple, list)):
        for part in tree:
            yield from within(part, what)


class Test:
    """A test's file with the functions and tables in it."""

    def __init__(self, path, natives=None, beside=()):
        """`beside` are other files of the package that are needed, or None for all of them."""
        self.path = path
        directory, name = os.path.split(path)
        others = sorted(os.listdir(os.path.join(TREE, directory))) if beside is None else beside
        self.package = Package(directory, [name, *(other for other in others if other.endswith(".go") and other != name)])
        self.package.imported = directory.removeprefix("staging/src/") if directory.startswith("staging") else f"k8s.io/kubernetes/{directory}"
        Package.loaded.setdefault(self.package.imported, self.package)
        self.evaluator, self.empty = None, Scope()
        self.natives = natives or {}

    def function(self, name):
        item, file = self.package.declared[name]
        self.evaluator = Evaluator(file, self.natives)
        return item

    def scope(self, name, until=None, quiet=True):
        """The names in a function before the loop over the table `until`, statements that cannot be evaluated left out."""
        item = self.function(name)
        scope = Scope()
        for parameter, _, _ in item[3]:
            scope.names[parameter] = None
        for statement in item[4]:
            if statement[0] == "each" and (until is None or statement[3] == ("name", until)):
                break
            try:
                getattr(self.evaluator, "do_" + statement[0])(statement, scope)
            except (Unknown, KeyError, TypeError, AttributeError, IndexError) as why:
                if not quiet or statement[0] == "assign" and until and ("name", until) in statement[1] or statement[0] == "declare" and any(until in item[1] for item in statement[1]):
                    raise Unknown(f"{self.path} {name}: {type(why).__name__} {why}") from why
        return scope

    def run(self, name):
        """The names in a function after all its statements, those left out that cannot be evaluated."""
        item = self.function(name)
        scope = Scope()
        for parameter, _, _ in item[3]:
            scope.names[parameter] = None
        self.run_block(item[4], scope)
        return scope

    def run_block(self, block, scope):
        for statement in block:
            try:
                getattr(self.evaluator, "do_" + statement[0])(statement, scope)
            except (Unknown, KeyError, TypeError, AttributeError, IndexError):
                continue

    def table(self, name, table):
        """The rows of a table of a function."""
        return self.scope(name, table).find(table)

    def call(self, called, *values):
        return self.evaluator.call(called, list(values))

    def assigned(self, function, wanted):
        """What a statement of a function gives a name that needs no other name."""
        item = self.function(function)
        found = [s[3][0] for s in item[4] if s[0] == "assign" and s[1] == [("name", wanted)]]
        return self.evaluator.value(found[0], self.empty) if found else None
