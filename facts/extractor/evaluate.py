"""Evaluates Go as far as the tables of upstream's tests need it: constants, literals, helpers that make and change objects.

Values are Python's own; structs are `Struct`, pointers `Pointer`. What is asked of a package is read from its files in the
tree, when it is first asked for. What cannot be evaluated raises `Unknown`.
"""
import copy
import re

from .model import BASIC, NATIVE_TYPES, Package, Pointer, STANDARD, Struct, Type, Unknown, copied, embedded_with, fields_of, get, keyed, put, resolve, zero
from .natives import METHODS, NATIVES, Time


class Lambda:
    def __init__(self, params, body, scope, file):
        self.params, self.body, self.scope, self.file = params, body, scope, file


class Returned(Exception):
    pass


class Broken(Exception):
    pass


class Scope:
    def __init__(self, outer=None):
        self.outer, self.names = outer, {}

    def find(self, name, *default):
        scope = self
        while scope:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        if default:
            return default[0]
        raise KeyError(name)

    def set(self, name, value):
        scope = self
        while scope:
            if name in scope.names:
                scope.names[name] = value
                return
            scope = scope.outer
        raise Unknown(name)


class Evaluator:
    """Evaluates what one file's functions do."""

    def __init__(self, file, natives=None):
        self.file, self.natives = file, natives or {}

    # Names.

    def name(self, name, scope):
        found = scope.find(name, Evaluator)
        if found is not Evaluator:
            return found
        if name in ("true", "false", "nil"):
            return {"true": True, "false": False, "nil": None}[name]
        if name == "iota":
            return scope.find("iota")
        return self.declared(self.file.package, name)

    def declared(self, package, name):
        key = f"{getattr(package, 'imported', '')}.{name}"
        for natives in (self.natives, NATIVES):
            if key in natives:
                return natives[key]
            if name in natives and package is self.file.package:
                return natives[name]
        if name in package.values:
            return package.values[name]
        if name not in package.declared:
            raise Unknown(f"{name} of {package.path}")
        item, file = package.declared[name]
        if item[0] == "func":
            value = Lambda(item[3], item[4], Scope(), file)
        elif item[0] == "type":
            return Type(("name", name), file, name)
        else:
            _, at, kind, values, index = item
            scope = Scope()
            scope.names["iota"] = index
            inner = Evaluator(file, self.natives)
            if values is None:
                value = zero(Type(kind, file))
            else:
                value = inner.value(values[at], scope, Type(kind, file) if kind else None)
        package.values[name] = value
        return value

    def package(self, tree, scope):
        """The import path, if an expression is the name of a package."""
        if tree[0] == "name" and scope.find(tree[1], None) is None:
            return self.file.imports.get(tree[1])
        return None

    def type(self, tree, scope):
        """A type that an expression stands for, or None."""
        if tree[0] == "type":
            return Type(tree[1], self.file)
        if tree[0] == "name" and (tree[1] in BASIC or isinstance(scope.find(tree[1], None), Type)):
            found = scope.find(tree[1], None)
            return found if isinstance(found, Type) else Type(("name", tree[1]), self.file)
        if tree[0] == "name" and self.file.package.declared.get(tree[1], [("",)])[0][0] == "type" and scope.find(tree[1], None) is None:
            return Type(("name", tree[1]), self.file)
        if tree[0] == "member" and self.package(tree[1], scope):
            imported = self.package(tree[1], scope)
            if f"{imported}.{tree[2]}" in NATIVE_TYPES or f"{imported}.{tree[2]}" in STANDARD:
                return Type(("name", f"{tree[1][1]}.{tree[2]}"), self.file)
            if f"{imported}.{tree[2]}" in NATIVES or f"{imported}.{tree[2]}" in self.natives:
                return None
            declared = Package.of(imported).declared.get(tree[2])
            if declared and declared[0][0] == "type":
                return Type(("name", f"{tree[1][1]}.{tree[2]}"), self.file)
        if tree[0] == "index":
            return self.type(tree[1], scope)
        if tree[0] == "unary" and tree[1] == "*":
            inner = self.type(tree[2], scope)
            return Type(("ptr", inner.tree), inner.file) if inner else None
        return None

    # Expressions.

    def value(self, tree, scope, kind=None):
        what = tree[0]
        return getattr(self, "at_" + what)(tree, scope, kind)

    def at_literal(self, tree, scope, kind):
        return tree[1]

    def at_name(self, tree, scope, kind):
        return self.name(tree[1], scope)

    def at_type(self, tree, scope, kind):
        return Type(tree[1], self.file)

    def at_lambda(self, tree, scope, kind):
        return Lambda(tree[1], tree[2], scope, self.file)

    def at_unary(self, tree, scope, kind):
        operator, operand = tree[1], tree[2]
        if operator == "&":
            inner = Type(kind.tree[1], kind.file) if kind and kind.tree[0] == "ptr" else None
            return Pointer(self.value(operand, scope, inner))
        value = self.value(operand, scope)
        if operator == "*":
            if not isinstance(value, Pointer):
                raise Unknown("a nil pointer")
            return value.value
        return {"-": lambda v: -v, "+": lambda v: v, "!": lambda v: not v, "^": lambda v: ~v}[operator](value)

    def at_binary(self, tree, scope, kind):
        operator = tree[1]
        left = self.value(tree[2], scope)
        if operator == "&&":
            return left and self.value(tree[3], scope)
        if operator == "||":
            return left or self.value(tree[3], scope)
        return self.operation(operator, left, self.value(tree[3], scope))

    def operation(self, operator, left, right):
        whole = isinstance(left, int) and isinstance(right, int)
        if operator == "/":
            return (abs(left) // abs(right)) * (1 if (left < 0) == (right < 0) else -1) if whole else left / right
        if operator == "%":
            return left - right * self.operation("/", left, right)
        same = lambda a, b: a is b or a == b
        return {
            "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b,
            "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "&^": lambda a, b: a & ~b, "==": same,
            "!=": lambda a, b: not same(a, b), "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
        }[operator](left, right)

    def at_index(self, tree, scope, kind):
        value = self.value(tree[1], scope)
        if isinstance(value, (Lambda, Type)) or callable(value):
            return value
        index = self.value(tree[2], scope)
        value = value.value if isinstance(value, Pointer) else value
        if isinstance(value, dict) or value is None:
            return (value or {}).get(keyed(index))
        return value[index]

    def at_slice(self, tree, scope, kind):
        value = self.value(tree[1], scope)
        low = self.value(tree[2], scope) if tree[2] else None
        return value[low:self.value(tree[3], scope) if tree[3] else None]

    def at_assert(self, tree, scope, kind):
        return self.value(tree[1], scope)

    def at_member(self, tree, scope, kind):
        imported = self.package(tree[1], scope)
        if imported:
            for natives in (self.natives, NATIVES):
                if f"{imported}.{tree[2]}" in natives:
                    return natives[f"{imported}.{tree[2]}"]
            return self.declared(Package.of(imported), tree[2])
        value = self.value(tree[1], scope)
        if isinstance(value, Time) and tree[2] == "Time":
            return value
        return get(value, tree[2])

    def at_composite(self, tree, scope, kind):
        of = self.type(tree[1], scope) if tree[1] else kind
        if of is None:
            raise Unknown(f"type of {tree[1]}")
        under = resolve(of, scope)
        what = under.tree[0]
        inner = lambda tree: Type(tree, under.file)
        if what == "ptr":
            return Pointer(self.value(("composite", None, tree[2]), scope, inner(under.tree[1])))
        if what == "native":
            return self.native(under.tree[1], tree[2], scope)
        if what == "struct":
            return self.struct(under, tree[2], scope)
        if what == "list":
            found = []
            for key, value in tree[2]:
                at = self.value(key, scope) if key else len(found)
                found += [zero(inner(under.tree[1]), scope)] * (at + 1 - len(found))
                found[at] = self.element(value, scope, inner(under.tree[1]))
            return found
        if what == "map":
            return {keyed(self.element(key, scope, inner(under.tree[1]))): self.element(value, scope, inner(under.tree[2])) for key, value in tree[2]}
        raise Unknown(f"a literal of {under.tree}")

    def element(self, tree, scope, kind):
        return copied(self.value(tree, scope, kind))

    def struct(self, of, elements, scope):
        fields = of.tree[1]
        known = {field[0]: field[1] for field in fields}
        made = {}
        for at, (key, value) in enumerate(elements):
            name = key[1] if key else fields[at][0]
            made[name] = self.element(value, scope, Type(known[name], of.file))
        return Struct(of, made)

    def native(self, name, elements, scope):
        if name.endswith("Time"):
            return self.value(elements[0][1], scope) if elements else Time(None)
        return NATIVE_TYPES[name]()

    # Calls.

    def at_call(self, tree, scope, kind):
        function, arguments, spread = tree[1], tree[2], tree[3]
        if function[0] == "name" and hasattr(self, "builtin_" + function[1]) and scope.find(function[1], None) is None and function[1] not in self.file.package.declared:
            return getattr(self, "builtin_" + function[1])(arguments, scope, spread)
        of = self.type(function, scope)
        if of is not None:
            return self.converted(of, arguments[0], scope)
        method = function[0] == "member" and not self.package(function[1], scope)
        if method:
            receiver = self.value(function[1], scope)
            field = receiver.value if isinstance(receiver, Pointer) else receiver
            if not (isinstance(field, Struct) and any(f[0] == function[2] for f in fields_of(field))):
                return self.method(receiver, function[2], [self.value(a, scope) for a in arguments], spread)
        called = self.value(function, scope)
        values = self.arguments(called, arguments, scope)
        return self.call(called, values, spread)

    def arguments(self, called, arguments, scope):
        return [copied(self.value(argument, scope)) for argument in arguments]

    def converted(self, of, argument, scope):
        value = self.value(argument, scope, of)
        under = resolve(of, scope)
        if under.tree == ("name", "string") and isinstance(value, int):
            return chr(value)
        if under.tree[0] == "name" and re.match(r"u?int", str(under.tree[1])) and isinstance(value, float):
            return int(value)
        if under.tree[0] == "name" and str(under.tree[1]).startswith("float"):
            return float(value)
        if under.tree == ("list", ("name", "byte")) and isinstance(value, str):
            return value
        if under.tree[0] == "struct" and isinstance(value, Struct):
            return Struct(under, value.fields)
        return value

    def call(self, called, values, spread=False):
        if isinstance(called, Lambda):
            if called.body is None:
                raise Unknown("a function without a body")
            scope = Scope(called.scope)
            for at, (name, _, several) in enumerate(called.params):
                if several:
                    rest = values[at:]
                    scope.names[name] = (rest[0] if spread else rest) if rest else None
                else:
                    scope.names[name] = values[at]
            try:
                Evaluator(called.file, self.natives).run(called.body, scope)
            except Returned as returned:
                return returned.args[0]
            return None
        if callable(called):
            return called(*(values[:-1] + list(values[-1] or []) if spread else values))
        raise Unknown(f"a call of {called!r}")

    def method(self, receiver, name, values, spread):
        value = receiver.value if isinstance(receiver, Pointer) else receiver
        if name == "DeepCopy":
            return Pointer(copy.deepcopy(value)) if isinstance(receiver, Pointer) else copy.deepcopy(value)
        if isinstance(value, Struct) and (value.of.name, name) in METHODS:
            return METHODS[value.of.name, name](value, *values)
        if isinstance(value, Struct):
            of = value.of
            while of.package and (of.name, name) not in of.package.methods and embedded_with(value, name):
                value = embedded_with(value, name)
                of = value.of
            found = of.package.methods.get((of.name, name)) if of.package else None
            if not found:
                raise Unknown(f"method {name} of {of.name}")
            item, file = found
            scope = Scope()
            pointer = item[2][1][0] == "ptr"
            scope.names[item[2][0]] = (receiver if isinstance(receiver, Pointer) and receiver.value is value else Pointer(value)) if pointer else copied(value)
            return self.call(Lambda(item[3], item[4], scope, file), values, spread)
        key = (type(value).__name__, name)
        if key in METHODS:
            return METHODS[key](value, *(values[:-1] + list(values[-1] or []) if spread else values))
        raise Unknown(f"method {name} of {value!r}")

    def builtin_append(self, arguments, scope, spread):
        values = [copied(self.value(a, scope)) for a in arguments]
        base = values[0] or []
        return base + (list(values[1] or []) if spread else values[1:])

    def builtin_len(self, arguments, scope, spread):
        value = self.value(arguments[0], scope)
        return len(value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value or [])

    def builtin_make(self, arguments, scope, spread):
        of = self.type(arguments[0], scope)
        under = resolve(of, scope)
        if under.tree[0] == "map":
            return {}
        length = self.value(arguments[1], scope) if len(arguments) > 1 else 0
        return [zero(Type(under.tree[1], under.file), scope) for _ in range(length)]

    def builtin_new(self, arguments, scope, spread):
        return Pointer(zero(self.type(arguments[0], scope), scope))

    def builtin_delete(self, arguments, scope, spread):
        (self.value(arguments[0], scope) or {}).pop(keyed(self.value(arguments[1], scope)), None)

    def builtin_panic(self, arguments, scope, spread):
        raise Unknown("panic")

    # Statements.

    def run(self, block, scope):
        for statement in block:
            getattr(self, "do_" + statement[0])(statement, scope)

    def do_expression(self, statement, scope):
        self.value(statement[1], scope)

    def do_block(self, statement, scope):
        self.run(statement[1], Scope(scope))

    def do_labelled(self, statement, scope):
        getattr(self, "do_" + statement[2][0])(statement[2], scope)

    def do_later(self, statement, scope):
        pass

    def do_declare(self, statement, scope):
        for index, item in enumerate(statement[1]):
            if item[0] == "type":
                scope.names[item[1]] = Type(item[2], self.file, item[1])
                continue
            _, names, kind, values, at = item
            scope.names["iota"] = at
            of = Type(kind, self.file) if kind else None
            for at, name in enumerate(names):
                scope.names[name] = copied(self.value(values[at], scope, of)) if values else zero(of, scope)

    def do_assign(self, statement, scope):
        _, targets, operator, sources = statement
        if len(sources) == 1 and len(targets) > 1:
            source = sources[0]
            if source[0] == "index" and len(targets) == 2:
                held = self.value(source[1], scope)
                index = keyed(self.value(source[2], scope))
                values = [held.get(index) if held else None, bool(held) and index in held]
            elif source[0] == "assert":
                values = [self.value(source, scope), True]
            else:
                values = self.value(source, scope)
                if not isinstance(values, (list, tuple)) or len(values) != len(targets):
                    raise Unknown("several values")
        else:
            values = [self.value(source, scope, None) for source in sources]
        for target, value in zip(targets, values):
            value = copied(value)
            if operator not in ("=", ":="):
                value = self.operation(operator[:-1], self.value(target, scope), value)
            self.assign(target, value, scope, operator == ":=")

    def assign(self, target, value, scope, new=False):
        if target[0] == "name":
            if target[1] == "_":
                return
            if new:
                scope.names[target[1]] = value
            else:
                scope.set(target[1], value)
        elif target[0] == "member" and target[2] == "Time" and isinstance(self.value(target[1], scope), Time):
            self.value(target[1], scope).nanos = value.nanos
        elif target[0] == "member":
            put(self.value(target[1], scope), target[2], value)
        elif target[0] == "index":
            held = self.value(target[1], scope)
            if held is None:
                held = {}
                self.assign(target[1], held, scope)
            index = self.value(target[2], scope)
            held[keyed(index) if isinstance(held, dict) else index] = value
        elif target[0] == "unary" and target[1] == "*":
            self.value(target[2], scope).value = value
        else:
            raise Unknown(f"assignment to {target[0]}")

    def do_if(self, statement, scope):
        scope = Scope(scope)
        if statement[1]:
            getattr(self, "do_" + statement[1][0])(statement[1], scope)
        self.run(statement[3] if self.value(statement[2], scope) else statement[4], Scope(scope))

    def do_for(self, statement, scope):
        scope = Scope(scope)
        if statement[1]:
            getattr(self, "do_" + statement[1][0])(statement[1], scope)
        for _ in range(100_000):
            if statement[2] and not self.value(statement[2], scope) or not self.turn(statement[4], scope):
                return
            if statement[3]:
                getattr(self, "do_" + statement[3][0])(statement[3], scope)
        raise Unknown("a loop without an end")

    def turn(self, body, scope):
        try:
            self.run(body, Scope(scope))
        except Broken as broken:
            return broken.args[0] == "continue"
        return True

    def do_each(self, statement, scope):
        _, targets, operator, source, body = statement
        held = self.value(source, scope)
        held = range(held) if isinstance(held, int) else held or []
        pairs = list(held.items()) if isinstance(held, dict) else list(enumerate(held))
        for pair in pairs:
            inner = Scope(scope)
            for target, value in zip(targets, pair):
                self.assign(target, copied(value), inner, operator == ":=")
            if not self.turn(body, inner):
                return

    def do_switch(self, statement, scope):
        scope = Scope(scope)
        if statement[1]:
            getattr(self, "do_" + statement[1][0])(statement[1], scope)
        subject = statement[2]
        if subject and subject[0] != "expression":
            raise Unknown("a switch of types")
        value = self.value(subject[1], scope) if subject else True
        for values, body in sorted(statement[3], key=lambda case: case[0] is None):
            if values is None or any(self.operation("==", self.value(v, scope), value) for v in values):
                try:
                    self.run(body, Scope(scope))
                except Broken as broken:
                    if broken.args[0] == "continue":
                        raise
                return

    def do_return(self, statement, scope):
        values = [copied(self.value(value, scope)) for value in statement[1]]
        raise Returned(values[0] if len(values) == 1 else values if values else None)

    def do_break(self, statement, scope):
        raise Broken("break")

    def do_continue(self, statement, scope):
        raise Broken("continue")

    def do_goto(self, statement, scope):
        raise Unknown("goto")

    do_select = do_send = do_fallthrough = do_goto
