"""Types and values of Go: what packages of the tree declare, structs, pointers, and how they are written as JSON."""
import os
import re

from . import syntax
from .natives import Quantity, Time

TREE = os.path.realpath(os.environ.get("KUBERNETES", "."))


class Unknown(Exception):
    pass


class Struct:
    """A value of a struct type: its fields by name, those not named being zero."""

    def __init__(self, of, fields):
        self.of, self.fields = of, fields

    def __repr__(self):
        return f"{self.of.name}{self.fields}"


class Pointer:
    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return f"&{self.value!r}"


class Type:
    """A type's tree, where it is written, and its name."""

    def __init__(self, tree, file, name="", package=None):
        self.tree, self.file, self.name, self.package = tree, file, name, package


class File:
    def __init__(self, package, imports):
        self.package, self.imports = package, imports


class Package:
    """What a directory declares. Files of tests are read with the others where a test's own package is asked for."""

    loaded = {}

    def __init__(self, path, only=None):
        self.path, self.declared, self.values, self.methods = path, {}, {}, {}
        directory = os.path.join(TREE, path)
        names = only or sorted(name for name in os.listdir(directory) if name.endswith(".go") and not name.endswith("_test.go"))
        for name in names:
            if "generated.pb" in name or "zz_generated.conversion" in name or re.search(r"_(windows|darwin|unsupported|others)(_test)?\.go$", name):
                continue
            with open(os.path.join(directory, name)) as source:
                self.add(source.read())

    def add(self, text):
        package, imports, found = syntax.parse(text)
        if package.endswith("_test"):
            return
        file = File(self, imports)
        for item in found:
            if item[0] == "func" and item[2]:
                kind = item[2][1][1] if item[2][1][0] == "ptr" else item[2][1]
                self.methods[kind[1], item[1]] = (item, file)
            elif item[0] == "func":
                self.declared[item[1]] = (item, file)
            elif item[0] == "type":
                self.declared[item[1]] = (item, file)
            else:
                for at, name in enumerate(item[1]):
                    self.declared.setdefault(name, ((item[0], at, *item[2:]), file))

    @classmethod
    def of(cls, imported):
        """The package of an import path."""
        if imported not in cls.loaded:
            place = imported.removeprefix("k8s.io/kubernetes/") if imported.startswith("k8s.io/kubernetes/") else f"staging/src/{imported}"
            if not os.path.isdir(os.path.join(TREE, place)):
                place = f"vendor/{imported}"
            if not os.path.isdir(os.path.join(TREE, place)):
                raise Unknown(f"package {imported}")
            cls.loaded[imported] = cls(place)
            cls.loaded[imported].imported = imported
        return cls.loaded[imported]


BASIC = {"string": "", "bool": False, "float64": 0.0, "float32": 0.0, "error": None, "any": None} | {f"{u}int{n}": 0 for u in ("", "u") for n in ("", 8, 16, 32, 64)} | {"byte": 0, "rune": 0, "uintptr": 0}


def named(kind, scope=None):
    """The package and name that a named type stands for, or None for a basic one."""
    name = kind.tree[1]
    if "." in name:
        alias, name = name.split(".")
        if alias not in kind.file.imports:
            raise Unknown(f"package {alias}")
        return kind.file.imports[alias], name
    return None, name


def resolve(kind, scope=None):
    """A type by its name, down to what it is made of; `scope` has types that a function declares."""
    while kind.tree[0] == "name":
        imported, name = named(kind)
        if imported is None and scope is not None and isinstance(scope.find(name, None), Type):
            kind = scope.find(name)
            continue
        if imported is None and name in BASIC and name not in kind.file.package.declared:
            return kind
        if f"{imported}.{name}" in STANDARD:
            return Type(STANDARD[f"{imported}.{name}"], kind.file, name)
        package = kind.file.package if imported is None else None
        if f"{imported}.{name}" in NATIVE_TYPES:
            return Type(("native", f"{imported}.{name}"), kind.file, name)
        package = package or Package.of(imported)
        declared = package.declared.get(name)
        if declared is None or declared[0][0] != "type":
            raise Unknown(f"type {name} of {package.path}")
        own = f"{getattr(package, 'imported', '')}.{name}"
        # The package of quantities itself sees what they are made of.
        if own in NATIVE_TYPES and not (imported is None and name == "Quantity"):
            return Type(("native", own), kind.file, name)
        kind = Type(declared[0][2], declared[1], name, package)
    return kind


# Types of Go's own packages, which the tree does not have.
STANDARD = {"net/http.Header": ("map", ("name", "string"), ("list", ("name", "string")))}

NATIVE_TYPES = {
    "k8s.io/apimachinery/pkg/api/resource.Quantity": lambda: Quantity("0"),
    "k8s.io/apimachinery/pkg/apis/meta/v1.Time": lambda: Time(None),
    "k8s.io/apimachinery/pkg/apis/meta/v1.MicroTime": lambda: Time(None),
    "time.Time": lambda: Time(None),
    "time.Duration": lambda: 0,
    "net.IP": lambda: None,
    "net.IPNet": lambda: None,
    "sync.Mutex": lambda: None,
    "sync.RWMutex": lambda: None,
    "testing.T": lambda: None,
    "context.Context": lambda: None,
    "k8s.io/klog/v2.Logger": lambda: None,
}


def zero(kind, scope=None):
    try:
        under = resolve(kind, scope)
    except Unknown:
        return None
    what = under.tree[0]
    if what == "struct":
        return Struct(under, {})
    if what == "native":
        return NATIVE_TYPES[under.tree[1]]()
    if what == "name":
        return BASIC.get(under.tree[1])
    return None


def fields_of(struct):
    return struct.of.tree[1] if struct.of.tree[0] == "struct" else []


def get(value, name):
    """A field, also of what is embedded; it is made where it was zero."""
    value = value.value if isinstance(value, Pointer) else value
    if not isinstance(value, Struct):
        raise Unknown(f"field {name} of {value!r}")
    if name in value.fields:
        return value.fields[name]
    for field, kind, _, _ in fields_of(value):
        if field == name:
            value.fields[name] = zero(Type(kind, value.of.file))
            return value.fields[name]
    holder = embedded(value, name)
    if holder is None:
        raise Unknown(f"field {name} of {value.of.name}")
    return get(holder, name)


def embedded(struct, name):
    """The embedded struct that has a field."""
    for field, kind, _, inside in fields_of(struct):
        if inside:
            inner = get(struct, field)
            inner = inner.value if isinstance(inner, Pointer) else inner
            if isinstance(inner, Struct) and (any(f[0] == name for f in fields_of(inner)) or embedded(inner, name)):
                return inner
    return None


def put(value, name, new):
    value = value.value if isinstance(value, Pointer) else value
    if not isinstance(value, Struct):
        raise Unknown(f"field {name} of {value!r}")
    if any(field[0] == name for field in fields_of(value)):
        value.fields[name] = new
        return
    holder = embedded(value, name)
    if holder is None:
        raise Unknown(f"field {name} of {value.of.name}")
    put(holder, name, new)


def copied(value):
    """A value as assignment copies it: structs, but not what they point to."""
    if isinstance(value, Struct):
        return Struct(value.of, {name: copied(field) for name, field in value.fields.items()})
    return value


def embedded_with(struct, method):
    for field, _, _, inside in fields_of(struct):
        if inside:
            inner = get(struct, field)
            inner = inner.value if isinstance(inner, Pointer) else inner
            if isinstance(inner, Struct):
                return inner
    return None


def keyed(key):
    """A map's key as Python can hold it."""
    return tuple(sorted((name, keyed(value)) for name, value in key.fields.items())) if isinstance(key, Struct) else key


def rows(structs):
    """Structs as dictionaries with all their fields."""
    def row(struct):
        struct = struct.value if isinstance(struct, Pointer) else struct
        return {field[0]: get(struct, field[0]) for field in fields_of(struct)}
    return [row(struct) for struct in structs] if isinstance(structs, list) else {key: row(struct) for key, struct in structs.items()}


def to_json(value):
    """A value as encoding/json writes it."""
    if isinstance(value, Pointer):
        return to_json(value.value)
    if isinstance(value, Quantity):
        return value.text
    if isinstance(value, Time):
        return value.text()
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if not isinstance(value, Struct):
        return value
    if value.of.name == "IntOrString":
        return get(value, "StrVal") if get(value, "Type") == 1 else get(value, "IntVal")
    made = {}
    for name, kind, tag, inside in fields_of(value):
        if name not in value.fields:
            continue
        told = re.search(r'json:"([^"]*)"', tag)
        key, *options = told.group(1).split(",") if told else [name]
        held = value.fields[name]
        written = to_json(held)
        # A pointer is left out if it is nil, whatever it points to; a struct that says nothing always is.
        empty = written is None or not isinstance(held, Pointer) and (written == {} or "omitempty" in options and written in ("", 0, False, []))
        if inside and (not told or "inline" in options or not key):
            made.update(written if isinstance(written, dict) else {})
        elif key != "-" and not empty:
            made[key or name] = written
    return made
