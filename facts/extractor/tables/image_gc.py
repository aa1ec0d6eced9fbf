"""Policy (percentages, ages in seconds), what is done in turn, event. At times in seconds, with the images of the store (ID, size,
whether it is pinned) and the IDs of those that containers use: `detect` and what is known then (how many images, which were used,
which were not); `free` so many bytes, how many are freed, how many images are left; `unused`: all are removed, how many are left;
`old`: since when the node collects, when each image was used, how many are left; `collect`: capacity and available bytes (null: not
known), and whether enough is freed.
"""
from ..natives import METHODS, NOW, SECOND, Time
from ..tests import get, Struct, Test

SOURCE = "pkg/kubelet/images/image_gc_manager_test.go"


class Clock:
    """A clock that goes on by a second whenever it is asked, and one that is set."""

    def __init__(self, nanos=NOW):
        self.nanos = nanos

    def now(self):
        self.nanos += SECOND
        return Time(self.nanos)


class Mock:
    """What tells the space of file systems."""


class Assert:
    pass


class Told:
    """What is known of an image, or how a collection ended."""

    def __init__(self, of):
        self.of = of


clock, steps = Clock(), []


def seconds(time):
    """Since the beginning; never is null."""
    if time.nanos is None:
        return None
    since = (time.nanos - NOW) / SECOND
    return int(since) if since == int(since) else since


def store(manager):
    """The images of the store and those in use."""
    runtime = get(manager, "runtime")
    images = [[get(image, "ID"), get(image, "Size"), get(image, "Pinned")] for image in get(runtime, "ImageList") or []]
    pods = [get(pod, "Pod").value for pod in get(runtime, "AllPodList") or []]
    return images, [get(container, "ImageID") for pod in pods for container in get(pod, "Containers") or []]


def step(what, manager, at, *more):
    steps.append([what, seconds(at), *store(manager), *more])


def detect(manager, _, at):
    # Tests begin in the year 1.
    step("detect", manager, at if at.nanos is not None and at.nanos >= NOW else clock.now(), {"known": None, "used": [], "unused": []})
    return [None, None]


def in_order(manager, context, at):
    detect(manager, context, at)
    images, used = store(manager)
    return [[Record(image) for image, *_ in images if image not in used], None]


class Record(Struct):
    """An image that may be removed; when it was used is a field that tests set."""

    def __init__(self, image):
        self.fields = {"id": image, "lastUsed": Time(None)}
        self.of = type("", (), {"name": "evictionInfo", "package": None, "tree": ("struct", [(name, None, "", False) for name in self.fields])})


def free_old(manager, _, images, at, began):
    used = [[get(image, "id"), seconds(get(image, "lastUsed"))] for image in images]
    steps.append(["old", seconds(at), seconds(began), used, None])
    return [images, None]


def collect(manager, *_):
    space = get(manager, "statsProvider").space
    known = [get(space, field) for field in ("CapacityBytes", "AvailableBytes")]
    steps.append(["collect", store(manager)[0], *(one.value if one else None for one in known), None])
    return Told(steps[-1])


def known(manager, image):
    record = Record(image)
    record.fields = {name: Told((name, image)) for name in ("firstDetected", "lastUsed")}
    return [record, True]


def free(_, __, ___, manager, ____, wanted, freed, left, at):
    step("free", manager, at, wanted, freed, left)


def length(_, held, count):
    # Of `old` the first is of what is left of those that may be removed, the last of the store.
    if steps and (steps[-1][0] == "old" or steps[-1][0] == "unused" and steps[-1][-1] is None):
        steps[-1][-1] = count


def says(value, word):
    if isinstance(value, Told) and isinstance(value.of, tuple) and value.of[0] == "lastUsed":
        steps[-1][-1][word].append(value.of[1])


def equal(_, expected, found, *__):
    if isinstance(found, Told) and found.of == "known":
        steps[-1][-1]["known"] = expected
    elif expected == Time(None):
        says(found, "unused")


def ends(word):
    def end(_, told, *__):
        if isinstance(told, Told) and isinstance(told.of, list):
            told.of[-1] = word
    return end


def keep(mock, space, *_):
    mock.space = space.value


METHODS.update({
    ("realImageGCManager", "detectImages"): detect,
    ("realImageGCManager", "Start"): lambda manager, context: detect(manager, context, clock.now()) and None,
    ("realImageGCManager", "imagesInEvictionOrder"): in_order,
    ("realImageGCManager", "freeOldImages"): free_old,
    ("realImageGCManager", "GarbageCollect"): collect,
    ("realImageGCManager", "DeleteUnusedImages"): lambda manager, _: step("unused", manager, clock.now(), None) and None,
    ("realImageGCManager", "imageRecordsLen"): lambda _: Told("known"),
    ("realImageGCManager", "getImageRecord"): known,
    ("Mock", "EXPECT"): lambda mock: mock, ("Mock", "ImageFsStats"): lambda mock, *_: mock, ("Mock", "Return"): keep,
    ("Assert", "Len"): length, ("Assert", "Empty"): lambda *_: None, ("Assert", "Equal"): equal, ("Assert", "True"): lambda _, value: says(value, "used"),
    ("Told", "After"): lambda told, _: told, ("Told", "Equal"): lambda told, _: told,
    ("Clock", "Now"): lambda held: Time(held.nanos), ("Clock", "Step"): lambda held, by: setattr(held, "nanos", held.nanos + by),
    ("Clock", "SetTime"): lambda held, time: setattr(held, "nanos", time.nanos),
    ("NoneType", "Tracer"): lambda *_: None,
})

TESTIFY = "github.com/stretchr/testify"
NATIVES = {
    "time.Now": lambda: clock.now(), "time.Sleep": lambda nanos: setattr(clock, "nanos", clock.nanos + nanos),
    "k8s.io/kubernetes/pkg/kubelet/server/stats/testing.NewMockProvider": lambda _: Mock(),
    "k8s.io/utils/clock/testing.NewFakeClock": lambda time: Clock(time.nanos), "go.opentelemetry.io/otel/trace/noop.NewTracerProvider": lambda: None,
    "k8s.io/client-go/tools/record.NewFakeRecorder": lambda _: None, "k8s.io/kubernetes/test/utils/ktesting.Init": lambda _: None,
    f"{TESTIFY}/mock.Anything": None, f"{TESTIFY}/assert.New": lambda _: Assert(), f"{TESTIFY}/assert.NoError": ends("enough"),
    f"{TESTIFY}/require.Error": ends("not enough"), "getImagesAndFreeSpace": free, "zero": Time(None),
}
# Handlers of runtimes are a gate that is off, and an ID is that of one image.
LEFT_OUT = ("TestDetectImagesInitialDetectWithRuntimeHandlerInImageCriAPIFeatureGate", "TestDeletePinnedImage")


def rows():
    test = Test(SOURCE, NATIVES, ["image_gc_manager.go"])
    for name in test.package.declared:
        if not name.startswith("Test") or name in LEFT_OUT or name == "TestValidateImageGCPolicy":
            continue
        clock.nanos = NOW
        steps.clear()
        scope = test.run(name)
        policy = get(scope.find("manager"), "policy")
        percent = [get(policy, f"{which}ThresholdPercent") for which in ("High", "Low")]
        ages = [get(policy, f"{which}Age") / SECOND for which in ("Min", "Max")]
        yield [name, [*percent, *(int(age) for age in ages)], steps, scope.find("expectedEvent", None)]
