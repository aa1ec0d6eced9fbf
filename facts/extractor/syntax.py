"""Go's syntax as far as tests of upstream use it: text to trees of tuples.

Types: ("name", "v1.Pod"), ("ptr", T), ("list", T), ("map", K, V), ("struct", [(name, T, tag, embedded)]), ("func",), ("any",).
Expressions and statements: see the methods of Parser.
"""
import ast
import re

KEYWORDS = set("break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var".split())
TOKEN = re.compile(r"""
    (?P<space>[ \t\r]+) | (?P<line>\n) | (?P<comment>//[^\n]*) | (?P<block>/\*.*?\*/)
  | (?P<raw>`[^`]*`) | (?P<string>"(?:\\.|[^"\\\n])*") | (?P<rune>'(?:\\.[0-7xuU0-9a-fA-F]*|[^'\\])')
  | (?P<number>0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|(?:[0-9][0-9_]*)?\.?[0-9][0-9_]*\.?(?:[eE][+-]?[0-9]+)?)
  | (?P<name>[^\W\d]\w*)
  | (?P<op>&\^=|<<=|>>=|\.\.\.|&\^|<<|>>|\+=|-=|\*=|/=|%=|&=|\|=|\^=|&&|\|\||<-|\+\+|--|==|!=|<=|>=|:=|[-+*/%&|^<>=!()\[\]{},;.:~])
""", re.X | re.S)
LEVELS = {"||": 1, "&&": 2, "==": 3, "!=": 3, "<": 3, "<=": 3, ">": 3, ">=": 3, "+": 4, "-": 4, "|": 4, "^": 4,
          "*": 5, "/": 5, "%": 5, "<<": 5, ">>": 5, "&": 5, "&^": 5}
ASSIGN = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "&^="}


def unquote(text):
    """The value of a string or rune literal; Python's escapes are Go's, but for octal ones and those above 255."""
    if text[0] == "`":
        return text[1:-1].replace("\r", "")
    if text[0] == "'":
        return ord(ast.literal_eval(text)) if text != "'\\''" else 39
    raw = ast.literal_eval("b" + re.sub(r'[^\x00-\x7f]', lambda m: "".join(f"\\x{b:02x}" for b in m.group().encode()), re.sub(r"\\[uU]([0-9a-fA-F]+)", lambda m: "".join(f"\\x{b:02x}" for b in chr(int(m.group(1), 16)).encode("utf-8", "surrogatepass")), text)))
    return raw.decode("utf-8", "surrogateescape")


def number(text):
    text = text.replace("_", "")
    if re.fullmatch(r"0[0-7]+", text):
        return int(text, 8)
    try:
        return int(text, 0)
    except ValueError:
        return float(text)


def tokens(text):
    """Kind, value and line of each token, with the semicolons that Go puts at the ends of lines."""
    at, line, result, last = 0, 1, [], None
    ends = lambda: last and (last[0] in ("name", "literal") or last[1] in ("break", "continue", "fallthrough", "return", "++", "--", ")", "]", "}"))
    while at < len(text):
        match = TOKEN.match(text, at)
        if not match:
            raise SyntaxError(f"line {line}: {text[at:at + 20]!r}")
        kind, value, at = match.lastgroup, match.group(), match.end()
        if kind == "line" or kind == "comment" or kind == "block" and "\n" in value:
            if kind != "comment" and ends():
                result.append(("op", ";", line))
                last = None
            line += value.count("\n")
        elif kind not in ("space", "block"):
            kept = "literal" if kind in ("raw", "string", "rune", "number") else "keyword" if value in KEYWORDS else kind
            last = (kept, (number(value) if kind == "number" else unquote(value)) if kept == "literal" else value, line)
            result.append(last)
            line += value.count("\n")
    return result + [("op", ";", line), ("end", None, line)]


class Parser:
    def __init__(self, text):
        self.tokens, self.at, self.braces = tokens(text), 0, True

    # What is next, and taking it.

    def value(self, ahead=0):
        kind, value, _ = self.tokens[min(self.at + ahead, len(self.tokens) - 1)]
        return None if kind == "literal" else value

    def kind(self):
        return self.tokens[self.at][0]

    def next(self):
        self.at += 1
        return self.tokens[self.at - 1][1]

    def take(self, value):
        if self.value() == value and self.kind() != "literal":
            self.at += 1
            return True
        return False

    def need(self, value):
        if not self.take(value):
            raise SyntaxError(f"line {self.tokens[self.at][2]}: expected {value!r}, not {self.tokens[self.at][1]!r}")

    def name(self):
        if self.kind() != "name":
            raise SyntaxError(f"line {self.tokens[self.at][2]}: expected a name, not {self.tokens[self.at][1]!r}")
        return self.next()

    def separated(self, end, item):
        result = []
        while not self.take(end):
            result.append(item())
            if not self.take(",") and not self.take(";"):
                self.need(end)
                break
        return result

    # A file: its imports and declarations.

    def file(self):
        self.need("package")
        package, imports, found = self.name(), {}, []
        self.take(";")
        while self.take("import"):
            specs = self.separated(")", self.importing) if self.take("(") else [self.importing()]
            imports.update(specs)
            self.take(";")
        while self.kind() != "end":
            if not self.take(";"):
                found += self.declaration()
        return package, imports, found

    def importing(self):
        alias = self.next() if self.kind() == "name" or self.value() == "." else None
        path = self.next()
        parts = path.split("/")
        base = parts[-2] if re.fullmatch(r"v\d+", parts[-1]) and len(parts) > 1 and "k8s.io/api" not in path and "apis" not in path else parts[-1]
        return alias or base.split(".")[0], path

    def declaration(self):
        """("func", name, receiver or None, params, body), ("var" | "const", names, type, values, index), ("type", name, T)"""
        if self.take("func"):
            receiver = None
            if self.take("("):
                receiver = self.separated(")", self.parameter)[0]
            name = self.name()
            if self.take("["):
                self.separated("]", self.parameter)
            params = self.signature()
            return [("func", name, receiver, params, self.block() if self.value() == "{" else None)]
        word = self.next()
        item = {"var": self.variables, "const": self.variables, "type": self.type_spec}[word]
        if not self.take("("):
            return [(word, *item(), 0)]
        found, last, index = [], None, 0
        while not self.take(")"):
            if self.take(";"):
                continue
            spec = item()
            if word == "const":
                spec = (spec[0], *last) if spec[2] is None and last else spec
                last = spec[1:]
            found.append((word, *spec, index))
            index += 1
        return found

    def variables(self):
        names = [self.name()]
        while self.take(","):
            names.append(self.name())
        kind = None if self.value() in ("=", ";", ")") else self.type()
        return names, kind, self.expressions() if self.take("=") else None

    def type_spec(self):
        name = self.name()
        if self.value() == "[" and self.value(1) != "]" and self.tokens[self.at + 1][0] == "name" and self.value(2) != "]":
            self.take("[")
            self.separated("]", self.parameter)
        self.take("=")
        return name, self.type()

    def parameter(self):
        """A name, or None, and a type."""
        if self.take("..."):
            return None, ("list", self.type()), True
        first = self.type()
        while self.take("|") or self.take("~"):
            self.type()
        if self.value() in (",", ")", "]", ";"):
            return None, first, False
        several = self.take("...")
        kind = self.type()
        while self.take("|"):
            self.type()
        return first[1], ("list", kind) if several else kind, several

    def signature(self):
        self.need("(")
        params = self.separated(")", self.parameter)
        if any(name for name, _, _ in params):
            known, filled = None, []
            for name, kind, several in reversed(params):
                known = kind if name else known
                filled.insert(0, (name or kind[1], known, several))
            params = filled
        if self.take("("):
            self.separated(")", self.parameter)
        elif self.kind() in ("name", "op", "keyword") and self.value() not in ("{", ";", ",", ")", "}", "]", "=", ":=", ":"):
            self.type()
        return params

    def type(self):
        if self.take("*"):
            return ("ptr", self.type())
        if self.take("("):
            inner = self.type()
            self.need(")")
            return inner
        if self.take("["):
            if not self.take("]"):
                if not self.take("..."):
                    self.expression()
                self.need("]")
            return ("list", self.type())
        if self.take("map"):
            self.need("[")
            key = self.type()
            self.need("]")
            return ("map", key, self.type())
        if self.take("struct"):
            self.need("{")
            return ("struct", sum(self.separated("}", self.field), []))
        if self.take("func"):
            self.signature()
            return ("func",)
        if self.take("interface"):
            self.need("{")
            depth = 1
            while depth:
                depth += {"{": 1, "}": -1}.get(self.value(), 0)
                self.next()
            return ("any",)
        if self.take("<-"):
            self.need("chan")
            return ("chan", self.type())
        if self.take("chan"):
            self.take("<-")
            return ("chan", self.type())
        if self.take("~"):
            return self.type()
        name = self.name()
        if self.take("."):
            name += "." + self.name()
        if self.value() == "[" and self.value(1) != "]" and self.kind() != "literal" and self.generic():
            self.take("[")
            self.separated("]", self.type)
        return ("name", name)

    def generic(self):
        """Whether the brackets that follow hold types: a look ahead, as far as that can be told."""
        at, braces = self.at, self.braces
        try:
            self.take("[")
            self.separated("]", self.type)
            return True
        except SyntaxError:
            return False
        finally:
            self.at, self.braces = at, braces

    def field(self):
        if self.value() == "*" or self.value(1) in (".", ";", "}") or self.tokens[self.at + 1][0] == "literal":
            kind = self.type()
            named = kind[1] if kind[0] == "ptr" else kind
            found = [(named[1].split(".")[-1], kind, True)]
        else:
            names = [self.name()]
            while self.take(","):
                names.append(self.name())
            kind = self.type()
            found = [(name, kind, False) for name in names]
        tag = self.next() if self.kind() == "literal" else ""
        return [(name, kind, tag, embedded) for name, kind, embedded in found]

    # Expressions.

    def expressions(self):
        found = [self.expression()]
        while self.take(","):
            found.append(self.expression())
        return found

    def expression(self, level=1):
        """("binary", operator, left, right), ("unary", operator, operand), or a primary expression"""
        left = self.unary()
        while self.kind() == "op" and LEVELS.get(self.value(), 0) >= level:
            operator = self.next()
            left = ("binary", operator, left, self.expression(LEVELS[operator] + 1))
        return left

    def unary(self):
        if self.kind() == "op" and self.value() in ("-", "+", "!", "^", "*", "&", "<-"):
            operator = self.next()
            return ("unary", operator, self.unary())
        return self.primary()

    def operand(self):
        """("literal", value), ("name", name), ("lambda", params, body), ("type", T)"""
        if self.kind() == "literal":
            return ("literal", self.next())
        if self.take("("):
            braces, self.braces = self.braces, True
            inner = self.expression()
            self.braces = braces
            self.need(")")
            return inner
        if self.value() == "func":
            self.next()
            params = self.signature()
            if self.value() == "{":
                braces, self.braces = self.braces, True
                body = self.block()
                self.braces = braces
                return ("lambda", params, body)
            return ("type", ("func",))
        if self.value() in ("[", "map", "struct", "interface", "chan"):
            return ("type", self.type())
        return ("name", self.name())

    def primary(self):
        """("call", f, arguments, spread), ("index", x, i), ("slice", x, low, high), ("member", x, name), ("assert", x, T),
        ("composite", type expression or None, [(key or None, value)])"""
        left = self.operand()
        while True:
            if self.take("."):
                if self.take("("):
                    kind = None if self.take("type") else self.type()
                    self.need(")")
                    left = ("assert", left, kind)
                else:
                    left = ("member", left, self.name())
            elif self.kind() == "op" and self.value() == "(":
                self.next()
                braces, self.braces = self.braces, True
                spread = []
                left = ("call", left, self.separated(")", lambda: self.argument(spread)), bool(spread))
                self.braces = braces
            elif self.kind() == "op" and self.value() == "[":
                left = self.bracket(left)
            elif self.kind() == "op" and self.value() == "{" and (left[0] == "type" or self.braces and self.names_type(left)):
                left = ("composite", left, self.elements())
            else:
                return left

    def names_type(self, left):
        return left[0] == "name" or left[0] == "member" and left[1][0] == "name" or left[0] == "index" and self.names_type(left[1])

    def argument(self, spread):
        value = self.expression()
        if self.take("..."):
            spread.append(True)
        return value

    def bracket(self, left):
        self.need("[")
        braces, self.braces = self.braces, True
        low = None if self.value() == ":" else self.expression() if self.value() not in ("*", "map") else ("type", self.type())
        if self.take(":"):
            high = None if self.value() in ("]", ":") else self.expression()
            if self.take(":"):
                self.expression()
            found = ("slice", left, low, high)
        else:
            while self.take(","):
                self.type()
            found = ("index", left, low)
        self.braces = braces
        self.need("]")
        return found

    def elements(self):
        self.need("{")
        braces, self.braces = self.braces, True
        found = self.separated("}", self.element)
        self.braces = braces
        return found

    def element(self):
        item = lambda: ("composite", None, self.elements()) if self.kind() == "op" and self.value() == "{" else self.expression()
        first = item()
        return (first, item()) if self.take(":") else (None, first)

    # Statements.

    def block(self):
        self.need("{")
        found = []
        while not self.take("}"):
            if not self.take(";"):
                found.append(self.statement())
        return found

    def statement(self):
        word = self.value() if self.kind() == "keyword" else None
        if word in ("var", "const", "type"):
            return ("declare", self.declaration())
        if word in ("if", "for", "switch", "select"):
            return getattr(self, word + "_")()
        if self.take("return"):
            return ("return", [] if self.value() in (";", "}") and self.kind() != "literal" else self.expressions())
        if word in ("break", "continue", "goto", "fallthrough"):
            self.next()
            return (word, self.name() if self.kind() == "name" else None)
        if word in ("go", "defer"):
            self.next()
            return ("later", self.expression())
        if self.kind() == "op" and self.value() == "{":
            return ("block", self.block())
        if self.kind() == "name" and self.value(1) == ":" and self.value(2) != "=":
            label = self.name()
            self.next()
            while self.take(";"):
                pass
            return ("labelled", label, self.statement()) if self.value() != "}" else ("block", [])
        return self.simple()

    def simple(self):
        """("assign", targets, operator, values), ("expression", x); with `:=` the operator is that"""
        if self.kind() == "keyword" and self.value() == "range":
            self.next()
            return ("range", [], ":=", self.expression())
        left = self.expressions()
        if self.kind() == "op" and (self.value() in ASSIGN or self.value() == ":="):
            operator = self.next()
            if self.kind() == "keyword" and self.value() == "range":
                self.next()
                return ("range", left, operator, self.expression())
            return ("assign", left, operator, self.expressions())
        if self.take("++") or self.take("--"):
            return ("assign", left, "+=" if self.tokens[self.at - 1][1] == "++" else "-=", [("literal", 1)])
        if self.take("<-"):
            return ("send", left, self.expression())
        return ("expression", left[0])

    def header(self):
        """The statements before a block, by semicolons."""
        braces, self.braces = self.braces, False
        found = [None]
        while not (self.kind() == "op" and self.value() == "{"):
            if self.take(";"):
                found.append(None)
            else:
                found[-1] = self.simple()
        self.braces = braces
        return found

    def if_(self):
        """("if", first or None, condition, then, otherwise)"""
        self.need("if")
        head = self.header()
        then = self.block()
        otherwise = []
        if self.take("else"):
            otherwise = [self.if_()] if self.value() == "if" else self.block()
        return ("if", head[0] if len(head) > 1 else None, head[-1][1], then, otherwise)

    def for_(self):
        """("each", targets, operator, x, body), ("for", first, condition, last, body)"""
        self.need("for")
        head = self.header()
        body = self.block()
        if head[0] and head[0][0] == "range":
            return ("each", *head[0][1:], body)
        first, condition, last = head if len(head) == 3 else (None, head[0], None)
        return ("for", first, condition[1] if condition else None, last, body)

    def switch_(self):
        """("switch", first, subject statement or None, [(values or None, body)])"""
        self.need("switch")
        head = self.header()
        return ("switch", head[0] if len(head) > 1 else None, head[-1], self.cases())

    def select_(self):
        self.need("select")
        return ("select", self.cases())

    def cases(self):
        self.need("{")
        found = []
        while not self.take("}"):
            if self.take(";"):
                continue
            if self.take("default"):
                values = None
            else:
                self.need("case")
                values = [self.case_value()]
                while self.take(","):
                    values.append(self.case_value())
                if self.kind() == "op" and self.value() in ("=", ":=", "<-"):
                    self.next()
                    self.expression()
            self.need(":")
            body = []
            while self.value() not in ("case", "default", "}") or self.kind() == "literal":
                if not self.take(";"):
                    body.append(self.statement())
            found.append((values, body))
        return found

    def case_value(self):
        if self.value() in ("*", "[", "map", "func") and self.kind() != "literal":
            at = self.at
            try:
                return self.expression()
            except SyntaxError:
                self.at = at
                return ("type", self.type())
        return self.expression()


def parse(text):
    """Package, imports by name, declarations."""
    return Parser(text).file()
