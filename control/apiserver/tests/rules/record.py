#!/usr/bin/env python3
"""Which places of upstream's validation our rows reach, asked of a kube-apiserver that says where each field error is made.

usage: record.py places > rules.tsv             the list beside this file, with the reasons that it has for what no row reaches
       record.py rows TABLE [--all] < INPUTS    rows of TABLE with what the server answers; without --all only those that
                                                reach a place that no row of rules.tsv reaches

KUBERNETES is a directory with Kubernetes' sources (pkg, staging); API_URL and API_PKI (admin.{crt,key}, system:masters) are a
kube-apiserver built of them, without controllers; FIELD_TRACE is the file that it writes to. For that it is built with
`-overlay` in place of apimachinery's pkg/util/validation/field/errors.go, where each constructor of an error first appends a
line to the file that the environment variable FIELD_TRACE names: the kind of error, the field, FILE:LINE of the caller and
its function by runtime.Callers, between tabs.

Warnings of upstream are in the list by their texts: a row is told one if a warning that it has fits.

A place is reached by a row if an error that is made there is told in the answer, by its field and reason. Of several rows the
shortest is named. rules.tsv has: file, function, number within the function, kind of error, field as it is written there, and
then a table of ours and the key of a row (its columns before the answers, of long ones the beginning), or a reason (see
src/kinds/tests/upstream.rs) and what it rests on.
"""
import copy, http.client, json, os, re, ssl, sys, time, urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))
TABLES = f"{HERE}/../../src/kinds/tests"
TREE = os.path.realpath(os.environ["KUBERNETES"])
ROOTS = """pkg/apis pkg/registry pkg/volume/validation
    staging/src/k8s.io/apiextensions-apiserver/pkg staging/src/k8s.io/kube-aggregator/pkg/apis
    staging/src/k8s.io/apimachinery/pkg/api staging/src/k8s.io/apimachinery/pkg/apis staging/src/k8s.io/apimachinery/pkg/labels
    staging/src/k8s.io/apimachinery/pkg/util/validation staging/src/k8s.io/apiserver/pkg/endpoints/handlers
    staging/src/k8s.io/apiserver/pkg/registry staging/src/k8s.io/apiserver/pkg/storage staging/src/k8s.io/apiserver/pkg/util/webhook""".split()
KINDS = "Duplicate Forbidden InternalError Invalid NotFound NotSupported Required TooFew TooLong TooLongCharacters TooLongMaxLength TooMany TooShort TypeInvalid".split()
CALL = re.compile(r"\bfield\.(%s)(?:\[[^]]*\])?\(" % "|".join(KINDS))
FUNCTION = re.compile(r"^(?:func (?:\([^)]*\) )?|var )(\w+)")
MARK = {f: f"FieldValue{f}" for f in KINDS} | {"TooLongCharacters": "FieldValueTooLong", "TooLongMaxLength": "FieldValueTooLong", "InternalError": "InternalError"}
# The columns of a row before the answers.
INPUTS = {
    "refusals": 4, "warnings": 4, "changes": 5, "stored_changes": 6, "requests": 4, "request_warnings": 4, "pod_changes": 5, "volume_changes": 5, "ephemeral_containers": 2, "security_profiles": 3,
    "scheduling": 2, "pod_volumes": 2, "pod_warnings": 2, "pod_security": 2, "pod_fields": 2, "pod_resources": 2, "pod_containers": 2, "pod_volume_sources": 2,
}


def first_argument(text):
    depth = 0
    for at, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if depth < 0 or depth == 0 and c == ",":
            return " ".join(text[:at].split())
    return " ".join(text.split())


def places():
    found = []
    for root in ROOTS:
        for folder, folders, files in sorted(os.walk(f"{TREE}/{root}")):
            folders[:] = [f for f in folders if f not in ("testing", "fuzzer")]
            for file in sorted(files):
                if not file.endswith(".go") or file.endswith("_test.go") or file.startswith("zz_generated") or file == "testing.go":
                    continue
                path, function, counted = os.path.relpath(f"{folder}/{file}", TREE), "", {}
                text = open(f"{folder}/{file}").read()
                at = 0
                for number, line in enumerate(text.splitlines(keepends=True), 1):
                    if named := FUNCTION.match(line):
                        function = named[1]
                    for call in CALL.finditer(line):
                        if line[: call.start()].lstrip().startswith("//"):
                            continue
                        counted[function] = counted.get(function, 0) + 1
                        field = first_argument(text[at + call.end() :])
                        found.append({"path": path, "line": number, "row": [path.removeprefix("staging/src/"), function, str(counted[function]), call[1], field]})
                    at += len(line)
    return found


WARNS = ["pkg/api", "pkg/registry", "staging/src/k8s.io/apimachinery/pkg/util/validation", "staging/src/k8s.io/apiserver/pkg/endpoints/handlers"]
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"|`([^`]*)`')


def warnings_of_upstream():
    """The texts of warnings, with where they stand: what a function of warnings says in a literal, or AddWarning is given."""
    found = []
    for root in WARNS:
        for folder, _, files in sorted(os.walk(f"{TREE}/{root}")):
            for file in sorted(f for f in files if f.endswith(".go") and not f.endswith("_test.go") and f != "doc.go"):
                function, counted = "", {}
                for line in open(f"{folder}/{file}"):
                    if named := FUNCTION.match(line):
                        function = named[1]
                    if line.lstrip().startswith("//") or "arning" not in function and "AddWarning(" not in line:
                        continue
                    for literal in TEXT.finditer(line):
                        text = literal[1].replace('\\"', '"') if literal[1] is not None else literal[2]
                        if " " in text and len(re.sub(r"%\w", "", text)) > 9:
                            counted[function] = counted.get(function, 0) + 1
                            path = os.path.relpath(f"{folder}/{file}", TREE).removeprefix("staging/src/")
                            found.append([path, function, str(counted[function]), "Warning", text])
    return found


# Where a table has the warnings that were told.
TOLD = {"warnings": 4, "request_warnings": 4, "volume_changes": 6, "ephemeral_containers": 3, "security_profiles": 4} | {
    f"{name}": 3 for name in ("scheduling", "pod_volumes", "pod_warnings", "pod_security", "pod_fields", "pod_resources", "pod_containers", "pod_volume_sources")
}


def rows_of(table):
    """The rows of a table, without what stands at its beginning."""
    return [line.rstrip("\n").split("\t") for line in open(f"{TABLES}/{table}.tsv") if not line.startswith("#")]


def rows_of_warnings():
    """For each text of a warning of upstream the shortest row that is told it."""
    rows = []
    for table, at in TOLD.items():
        for columns in rows_of(table):
            rows.append((table, " ".join(columns[: INPUTS[table]]), json.loads(columns[at])))
    for place in warnings_of_upstream():
        pattern = re.compile(".*".join(re.escape(part) for part in re.split(r"%[-+#]?\w", place[4])), re.S)
        told = [(table, key) for table, key, texts in rows if any(pattern.search(text) for text in texts)]
        yield place, min(told, key=lambda row: len(row[1]), default=None)


# The server

url, pki = urllib.parse.urlsplit(os.environ["API_URL"]), os.environ["API_PKI"]
context = ssl._create_unverified_context()
context.load_cert_chain(f"{pki}/admin.crt", f"{pki}/admin.key")
connection = http.client.HTTPSConnection(url.hostname, url.port, context=context, timeout=60)
trace = open(os.environ["FIELD_TRACE"], "a+")


def ask(method, path, body=None, kind="application/json", accept="application/json", who="", token=""):
    """An answer. `who` is whom the request acts as: a name, and then groups, and what else is known of him as KEY=VALUE."""
    global connection
    sent = body if body is None or isinstance(body, str) else json.dumps(body)
    if token:
        # Without the certificate, which would come first.
        other = http.client.HTTPSConnection(url.hostname, url.port, context=ssl._create_unverified_context(), timeout=60)
        other.request(method, path, sent, {"Content-Type": kind, "Accept": accept, "Authorization": f"Bearer {token}"})
        answer = other.getresponse()
        return answer.status, json.loads(answer.read()), []
    headers = [("Content-Type", kind), ("Accept", accept)]
    for at, part in enumerate(who.split(",") if who else []):
        key, value = part.split("=") if "=" in part else (None, part)
        name = f"Extra-{urllib.parse.quote(key, safe='')}" if key else "Group" if at else "User"
        headers.append((f"Impersonate-{name}", value))
    for again in (True, False):
        try:
            connection.putrequest(method, path)
            for header in headers + [("Content-Length", str(len((sent or "").encode())))]:
                connection.putheader(*header)
            connection.endheaders((sent or "").encode())
            answer = connection.getresponse()
            text = answer.read()
            break
        except (http.client.HTTPException, OSError):
            connection = http.client.HTTPSConnection(url.hostname, url.port, context=context, timeout=60)
            if not again:
                raise
    warned = [w.removeprefix('299 - "').removesuffix('"').replace('\\"', '"').replace("\\\\", "\\") for w in answer.headers.get_all("Warning") or []]
    try:
        return answer.status, json.loads(text), warned
    except ValueError:
        return answer.status, {"message": text.decode(errors="replace")}, warned


def watched(method, path, body=None):
    """An answer, and the places of the errors that it tells. The method may be followed by the type of a patch, by that which a
    GET accepts, by whom the request acts as: `PUT as jane`, or by the token that it has: `GET with TOKEN`."""
    trace.seek(0, 2)
    method, _, token = method.partition(" with ")
    method, _, who = method.partition(" as ")
    method, _, media = method.partition(" ")
    kind = "application/json" if method != "PATCH" else media or "application/merge-patch+json"
    code, answer, warned = ask(method, path, body, kind, media if media and method == "GET" else "application/json", who, token)
    causes = (answer.get("details") or {}).get("causes") or []
    told = {(c.get("field"), c.get("reason")) for c in causes}
    at = set()
    for line in trace.readlines():
        kind, field, place = line.rstrip("\n").split("\t")[:3]
        if (field, MARK[kind]) in told or not causes and code >= 400 and field in answer.get("message", ""):
            file, number = place.rsplit(":", 1)
            at.add((os.path.realpath(file).removeprefix(TREE + "/"), int(number)))
    return code, answer, warned, at


discovered = {}


def served(version, kind):
    if version not in discovered:
        listed = ask("GET", root(version))[1].get("resources", [])
        discovered[version] = {r["kind"]: r for r in listed if "/" not in r["name"]}
    return discovered[version].get(kind)


def root(version):
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def collection(version, kind):
    resource = served(version, kind)
    return f"{root(version)}{'/namespaces/n' if resource['namespaced'] else ''}/{resource['name']}"


# Our rows

samples = {}
for line in open(f"{TABLES}/samples.tsv"):
    version, kind, rest = line.rstrip("\n").split("\t", 2)
    samples[version, kind] = json.loads(rest)


def name_of(kind, name):
    return {"APIService": f"v1.{name}.example", "IPAddress": f"10.9.{ord(name[0])}.0", "CustomResourceDefinition": f"{name}.test.example"}.get(kind, name)


def sample(version, kind, name):
    made = copy.deepcopy(samples[version, kind])
    if kind == "CustomResourceDefinition":
        made["spec"]["names"]["plural"] = name
    if kind == "APIService":
        made["spec"]["group"] = f"{name}.example"
    metadata = {"name": name_of(kind, name), "labels": {"l": "1"}, "annotations": {"an": "1"}}
    return made | {"apiVersion": version, "kind": kind, "metadata": metadata}


def expanded(text):
    """A column: a text such as {a*300} in it stands for 300 times the letter."""
    return re.sub(r"\{(\w)\*(\d+)\}", lambda m: m[1] * int(m[2]), text)


def written(text):
    return json.loads(expanded(text))


def shortened(text):
    return re.sub(r"(\w)\1{299,}", lambda m: f"{{{m[1]}*{len(m[0])}}}", text)


def put(made, pointer, value):
    steps = [s.replace("~1", "/") for s in pointer.split("/")[1:]]
    place = made
    for step in steps[:-1]:
        if isinstance(place, list):
            place = place[int(step)]
        else:
            if place.get(step) is None:
                place[step] = {}
            place = place[step]
    last = steps[-1]
    if isinstance(place, list):
        if int(last) < len(place):
            place[int(last)] = written(value)
        else:
            place.append(written(value))
    elif value == "-":
        place.pop(last, None)
    else:
        place[last] = written(value)
    return made


def delete(one):
    code, gone, _ = ask("DELETE", f"{one}?gracePeriodSeconds=0")
    if code < 300 and ((gone.get("metadata") or {}).get("finalizers") or (gone.get("spec") or {}).get("finalizers")):
        ask("PATCH", one, {"metadata": {"finalizers": None}}, "application/merge-patch+json")
        if "/namespaces/x" in one:
            ask("PUT", f"{one}/finalize", {"metadata": {"name": "x"}, "spec": {}})


def fresh(made, path, status):
    """A new object, with a status if that is not null; None if the server does not take it."""
    one = f"{path}/{made['metadata']['name']}"
    delete(one)
    code, stored, _ = ask("POST", path, made)
    if code == 201 and status not in (None, "null", "{}"):
        stored["status"] = (stored.get("status") or {}) | json.loads(status)
        code, stored, _ = ask("PUT", f"{one}/status", stored)
    if code >= 300:
        print("not stored:", json.dumps(stored)[:400], file=sys.stderr)
        return None
    return one, stored


def refusals(version, kind, pointer, value, name="x"):
    return watched("POST", collection(version, kind) + "?dryRun=All", put(sample(version, kind, name), pointer, value))


def warnings(*row):
    return refusals(*row, name="w")


kept = set()


def changes(version, kind, subresource, pointer, value):
    name = "y" if version == "autoscaling/v1" else "x"
    one = f"{collection(version, kind)}/{name_of(kind, name)}"
    if (version, kind) not in kept:
        kept.add((version, kind))
        if not fresh(sample(version, kind, name), collection(version, kind), None):
            return None
    stored = ask("GET", one)[1]
    return watched("PUT", f"{one}{subresource and '/'}{subresource}?dryRun=All", put(stored, pointer, value))


def stored_changes(version, kind, rest, status, subresource, changed):
    made = {"apiVersion": version, "kind": kind} | written(rest)
    made["metadata"] = {"name": name_of(kind, "x")} | made.get("metadata", {})
    kept.discard((version, kind))
    if not (made := fresh(made, collection(version, kind), status)):
        return None
    one, stored = made
    for pointer, value in written(changed).items():
        put(stored, pointer, "-" if value == "-" else json.dumps(value))
    answer = watched("PUT", f"{one}{subresource and '/'}{subresource}?dryRun=All", stored)
    delete(one)
    return answer


given_now = ("", [])


def give(given):
    """Makes the objects that a request needs, or deletes one for which there is `null`, and removes those of the request before."""
    global given_now
    if given_now[0] == given:
        return True
    for one in reversed(given_now[1]):
        delete(one)
    given_now = (given, [])
    for path, made, *method in written(given):
        if made is None or method:
            ask(*(method or ["DELETE"]), path, made)
            continue
        one = f"{path}/{made['metadata']['name']}"
        delete(one)
        for _ in range(50):
            code, answer, _ = ask("POST", path, made)
            if code not in (404, 409):
                break
            time.sleep(0.1)
        if code >= 300:
            print("not stored:", json.dumps(answer)[:400], file=sys.stderr)
            return False
        given_now[1].append(one)
        for version in made["spec"]["versions"] if "customresourcedefinitions" in path else []:
            place = f"/apis/{made['spec']['group']}/{version['name']}/{made['spec']['names']['plural']}"
            for _ in range(50):
                if ask("GET", place)[0] == 200:
                    break
                time.sleep(0.1)
            time.sleep(0.5)
    return True


def requests(given, method, path, body):
    if not give(given):
        return None
    if " as " in method or " with " in method:
        # Rights and references are known a moment later.
        time.sleep(1)
    # {uid:PATH} stands for the uid of an object.
    body = re.sub(r"\{uid:([^}]*)\}", lambda m: ask("GET", m[1])[1]["metadata"]["uid"], body)
    return watched(method, path, expanded(body) if body else None)


def request_warnings(*row):
    return requests(*row)


PODS = "/api/v1/namespaces/n/pods"


def pod_of(rest):
    spec = {"containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": False}
    return {"metadata": {"name": "x", "labels": {"a": "b"}}, "spec": spec | json.loads(rest)}


def created_pod(kind, pod):
    if kind == "Pod":
        return watched("POST", f"{PODS}?dryRun=All", pod)
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": pod}
    return watched("POST", "/apis/apps/v1/namespaces/n/deployments?dryRun=All", {"metadata": {"name": "x"}, "spec": spec})


def pod_specs(kind, rest):
    return created_pod(kind, pod_of(rest))


def security_profiles(kind, annotations, spec):
    metadata = {"name": "x", "labels": {"a": "b"}, "annotations": json.loads(annotations)}
    return created_pod(kind, {"metadata": metadata, "spec": json.loads(spec)})


def pod_changes(subresource, rest, metadata, status, changed):
    pod = pod_of(rest)
    pod["metadata"] |= json.loads(metadata)
    if not (made := fresh(pod, PODS, status)):
        return None
    one, stored = made
    for pointer, value in written(changed).items():
        put(stored, pointer, "-" if value == "-" else json.dumps(value))
    return watched("PUT", f"{one}{subresource and '/'}{subresource}?dryRun=All", stored)


def volume_changes(kind, made, status, pointer, value):
    path = "/api/v1/persistentvolumes" if kind == "PersistentVolume" else "/api/v1/namespaces/n/persistentvolumeclaims"
    made = json.loads(made)
    made.setdefault("metadata", {})["name"] = "x"
    if not (made := fresh(made, path, status)):
        return None
    one, stored = made
    return watched("PUT", f"{one}?dryRun=All", put(stored, pointer, value))


there = None


def ephemeral_containers(before, wanted):
    global there
    if there is None or there[0] != before:
        containers = [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]
        spec = {"containers": containers, "initContainers": [{"name": "i", "image": "i"}], "volumes": [{"name": "v", "emptyDir": {}}]}
        one, stored = fresh({"metadata": {"name": "x"}, "spec": spec}, PODS, None)
        stored["spec"]["ephemeralContainers"] = json.loads(before)
        there = before, ask("PUT", f"{one}/ephemeralcontainers", stored)[1]
    pod = copy.deepcopy(there[1])
    pod["spec"]["ephemeralContainers"] = json.loads(wanted)
    return watched("PUT", f"{PODS}/x/ephemeralcontainers?dryRun=All", pod)


def send(table, row):
    global there
    if table != "ephemeral_containers":
        there = None
    if table not in ("requests", "request_warnings"):
        give("[]")
    if table in ("refusals", "warnings", "changes") and not served(row[0], row[1]):
        return None
    return globals().get(table, pod_specs)(*row)


def causes_of(answer):
    causes = (answer.get("details") or {}).get("causes") or []
    return [f"{c['field']}: {c['message']}".split("\nchanged: ")[0] for c in causes]


def setup():
    ask("POST", "/api/v1/namespaces", {"metadata": {"name": "n"}})
    ask("POST", "/api/v1/namespaces/n/serviceaccounts", {"metadata": {"name": "default"}})


def known():
    """What rules.tsv says of each place."""
    path = f"{HERE}/rules.tsv"
    rows = [l.rstrip("\n").split("\t") for l in open(path) if not l.startswith("#")] if os.path.exists(path) else []
    return {tuple(r[:4]): r[5:] for r in rows}


class Finder:
    """Finds the place of a line: a call that goes over several lines has one of them."""

    def __init__(self):
        self.all = places()
        self.lines = {}
        for place in self.all:
            self.lines.setdefault(place["path"], []).append(place)
        self.strange = set()

    def find(self, path, line):
        near = [p for p in self.lines.get(path, []) if line - 12 <= p["line"] <= line]
        if not near:
            self.strange.add((path, line))
            return None
        return tuple(max(near, key=lambda p: p["line"])["row"][:4])


def record_places():
    finder, old, reached = Finder(), known(), {}
    for table, width in INPUTS.items():
        if not os.path.exists(f"{TABLES}/{table}.tsv"):
            continue
        for row in rows_of(table):
            row = row[:width]
            key = " ".join(row)
            if (answer := send(table, row)) is None:
                continue
            for at in answer[3]:
                if place := finder.find(*at):
                    if place not in reached or len(key) < len(reached[place][1]):
                        reached[place] = (table, key)
    reached = {place: (table, key if len(key) < 400 else f"{key[:400]}…") for place, (table, key) in reached.items()}
    print("# Recorded by control/apiserver/tests/rules/record.py, which says what the columns are.")
    for place in finder.all:
        key = tuple(place["row"][:4])
        before = old.get(key, ["open", ""])
        told = reached.get(key) or (before if before[0] not in INPUTS else ["open", ""])
        print("\t".join([*place["row"], *told]))
    for place, told in rows_of_warnings():
        before = old.get(tuple(place[:4]), ["open", ""])
        print("\t".join([*place, *(told or (before if before[0] not in INPUTS else ["open", ""]))]))
    for strange in sorted(finder.strange):
        print("no place:", *strange, file=sys.stderr)
    print(len(reached), "of", len(finder.all), "reached", file=sys.stderr)


def record_rows(table, everything):
    finder, old, seen = Finder(), known(), set()
    for line in sys.stdin:
        row = line.rstrip("\n").split("\t")[: INPUTS[table]]
        try:
            answer = send(table, row)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            print("row:", line[:200], error, file=sys.stderr)
            continue
        if answer is None:
            continue
        code, body, warned, at = answer
        found = {finder.find(*one) for one in at} - {None}
        new = {p for p in found if p not in seen and old.get(p, ["open"])[0] not in INPUTS}
        seen |= found
        if new or everything:
            told = {"warnings": [warned], "request_warnings": [warned], "requests": [code, causes_of(body) or ([body.get("message", "")] if code >= 400 else [])], "stored_changes": [causes_of(body)], "refusals": [causes_of(body)], "changes": [causes_of(body)], "pod_changes": [causes_of(body)]}
            answers = told.get(table, [causes_of(body), warned])
            after = {"security_profiles": ["{}"], "ephemeral_containers": [""]}.get(table, [""] if table.startswith(("pod_", "scheduling")) and table != "pod_changes" else [])
            print("\t".join([*row, *(shortened(json.dumps(a, ensure_ascii=False)) for a in answers), *after]), flush=True)
            print(code, *(":".join(p[:3]) for p in new), "" if causes_of(body) else body.get("message", "")[:200], file=sys.stderr)


setup()
if sys.argv[1] == "places":
    record_places()
else:
    record_rows(sys.argv[2], "--all" in sys.argv)
