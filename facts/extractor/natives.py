"""What is not evaluated from upstream's files but known here: Go's own packages, times, quantities, pointers."""
import datetime
import math
import re
from fractions import Fraction


class Quantity:
    """A quantity by its text."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text

    def number(self):
        digits, suffix = re.fullmatch(r"([-+]?[0-9.]+)([a-zA-Z]*)", self.text).groups()
        powers = {"": 1, "m": Fraction(1, 1000), "k": 1000, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
        return Fraction(digits) * powers[suffix]


class Time:
    """Nanoseconds since 1970, or None for the zero time."""

    def __init__(self, nanos):
        self.nanos = nanos

    def text(self):
        if self.nanos is None:
            return None
        return datetime.datetime.fromtimestamp(self.nanos // 10**9, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    def __eq__(self, other):
        return isinstance(other, Time) and self.nanos == other.nanos

    def __hash__(self):
        return hash(self.nanos)

    def __repr__(self):
        return f"time {self.nanos}"


SECOND = 10**9
# Any instant is as good as another, if it is the same at every extraction.
NOW = 1_700_000_000 * SECOND


def pointer(value, *_):
    from .model import Pointer
    return Pointer(value)


def members(*values):
    """A set, as the map that it is."""
    from .model import keyed
    return {keyed(value): None for value in values}


def nothing(*_):
    return None


def formatted(text, *values):
    """fmt.Sprintf of what tables use."""
    values = list(values)
    made, at = "", 0
    while at < len(text):
        if text[at] != "%":
            made, at = made + text[at], at + 1
            continue
        end = at + 1
        while text[end] not in "dvsqtxfwTc%":
            end += 1
        if text[end] == "%":
            made += "%"
        else:
            value = values.pop(0)
            made += f'"{value}"' if text[end] == "q" else ("%" + text[at + 1:end].lstrip("#+") + {"v": "s", "w": "s", "t": "s", "q": "s", "T": "s"}.get(text[end], text[end])) % (str(value).lower() if isinstance(value, bool) else value)
        at = end + 1
    return made


def duration(nanos):
    return nanos


def date(year, month, day, hour, minute, second, nanos, *_):
    return Time(int(datetime.datetime(year, month, day, hour, minute, second, tzinfo=datetime.timezone.utc).timestamp()) * SECOND + nanos)


def natives():
    meta, resource = "k8s.io/apimachinery/pkg/apis/meta/v1", "k8s.io/apimachinery/pkg/api/resource"
    pointers = ["k8s.io/utils/ptr.To"] + [f"k8s.io/utils/pointer.{n}" for n in "Int Int32 Int64 String Bool Float64".split()]
    found = {name: pointer for name in pointers}
    found |= {f"time.{name}": nanos for name, nanos in {"Nanosecond": 1, "Microsecond": 1000, "Millisecond": 10**6, "Second": SECOND, "Minute": 60 * SECOND, "Hour": 3600 * SECOND}.items()}
    found |= {f"time.{month}": at + 1 for at, month in enumerate("January February March April May June July August September October November December".split())}
    found |= {f"math.{name}": value for name, value in {"MaxInt64": 2**63 - 1, "MinInt64": -2**63, "MaxInt32": 2**31 - 1, "MinInt32": -2**31, "MaxUint32": 2**32 - 1, "MaxInt": 2**63 - 1}.items()}
    found |= {f"k8s.io/apimachinery/pkg/util/sets.{name}": members for name in ("New", "NewString", "NewInt")}
    found |= {
        "runtime.GOOS": "linux", "math.Pow10": lambda power: float(f"1e{power}"), "math.Inf": lambda sign: float("inf") if sign >= 0 else float("-inf"),
        f"{resource}.MustParse": Quantity, f"{resource}.NewQuantity": lambda value, *_: pointer(Quantity(str(value))),
        f"{resource}.NewMilliQuantity": lambda value, *_: pointer(Quantity(f"{value}m")),
        f"{meta}.Now": lambda: Time(NOW), "time.Now": lambda: Time(NOW), f"{meta}.NewTime": lambda time: time, "time.Unix": lambda s, n=0: Time(s * SECOND + n),
        f"{meta}.Unix": lambda s, n=0: Time(s * SECOND + n), "time.Date": date, f"{meta}.Date": date, "time.UTC": None, f"{meta}.NewMicroTime": lambda time: time,
        "fmt.Sprintf": formatted, "fmt.Errorf": formatted, "errors.New": lambda text: text, "fmt.Sprint": lambda *values: "".join(map(str, values)),
        "strings.Repeat": lambda text, times: text * times, "strings.Join": lambda parts, by: by.join(parts or []), "strings.Split": lambda text, by: text.split(by),
        "strings.ToUpper": str.upper, "strings.ToLower": str.lower, "strconv.Itoa": str, "strings.TrimSpace": str.strip, "strings.HasPrefix": str.startswith,
        "strings.Contains": lambda text, part: part in text, "strings.ReplaceAll": str.replace, "context.Background": nothing, "context.TODO": nothing,
        "net/http.StatusOK": 200, "k8s.io/utils/net.ParseIPSloppy": lambda text: text, "k8s.io/utils/net.ParseCIDRSloppy": lambda text: [text, pointer(text), None],
    }
    return found


NATIVES = natives()

METHODS = {
    ("Quantity", "Value"): lambda quantity: math.ceil(quantity.number()),
    ("Quantity", "MilliValue"): lambda quantity: math.ceil(quantity.number() * 1000),
    ("Quantity", "Cmp"): lambda quantity, other: (quantity.number() > other.number()) - (quantity.number() < other.number()),
    ("Quantity", "String"): lambda quantity: quantity.text,
    ("Quantity", "IsZero"): lambda quantity: quantity.number() == 0,
    ("Time", "Add"): lambda time, nanos: Time((time.nanos or 0) + nanos),
    ("Time", "Time"): lambda time: time,
    ("Time", "Rfc3339Copy"): lambda time: Time(time.nanos // SECOND * SECOND),
    ("Time", "UTC"): lambda time: time,
    ("Time", "IsZero"): lambda time: time.nanos is None,
    ("Time", "Sub"): lambda time, other: time.nanos - other.nanos,
    ("Time", "Truncate"): lambda time, by: Time(time.nanos // by * by),
    ("dict", "Insert"): lambda held, *values: held.update(members(*values)),
    ("dict", "Has"): lambda held, value: value in held,
    ("dict", "Len"): len,
    **{("NoneType", name): nothing for name in ("Error", "Errorf", "Fatalf", "Info", "Log", "Logf")},
    ("NoneType", "Helper"): nothing, ("NoneType", "Context"): nothing, ("NoneType", "Name"): lambda *_: "test", ("NoneType", "Cleanup"): nothing,
    ("NoneType", "TempDir"): lambda *_: "/tmp",
    ("int", "Nanoseconds"): duration, ("str", "Error"): str,
}
